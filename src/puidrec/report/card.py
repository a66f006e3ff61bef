"""A model card: what a model was trained on, how, under which assumptions, how good it is, and what
an audit found. The words are in `templates/card.md.j2`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from puidrec.errors import one_line
from puidrec.methods.table import SIGNED, MethodSpec
from puidrec.report.page import markdown_page

if TYPE_CHECKING:
    from puidrec.auditing.result import Audit
    from puidrec.data.dataset import Dataset
    from puidrec.data.split import Split
    from puidrec.evaluation import Evaluation
    from puidrec.model import Recommender


def model_card(
    model: Recommender,
    data: Dataset | None,
    split: Split | None,
    evaluation: Evaluation | None,
    audit: Audit | None,
) -> str:
    """The card as Markdown; parts that nothing is known of say so."""
    spec, settings = model.settings.spec, model.settings
    return markdown_page(
        "card",
        model=model,
        data=data,
        split=split,
        evaluation=evaluation,
        audit=audit,
        users=len(model.user_ids_),
        items=len(model.item_ids_),
        rows=model.seen_[1].size,
        given=settings.given("seed"),
        assumptions=assumptions(spec, settings.adjusts),
        plain=plain,
    )


def assumptions(spec: MethodSpec, adjusts: bool = False) -> str:
    """What must hold for the method to do what it promises, read from its row of the table."""
    weighs = adjusts if spec.uses_propensity == "without ids" else spec.uses_propensity
    signed = spec.build == SIGNED
    return markdown_page("assumptions", spec=spec, weighs=weighs, signed=signed).strip()


def plain(text: Any) -> str:
    """Text of one line that Markdown shows as it is."""
    return one_line(str(text)).replace("<", "&lt;").replace("|", "\\|")
