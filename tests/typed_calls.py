"""What users write, for a type checker; nothing imports this file, `make lint` checks it strictly.

The wrong call is ignored by the name of its error. Were it not seen as one, mypy would complain of
an ignore that ignores nothing.
"""

from typing import Any

import numpy.typing as npt
import pandas as pd
import polars as pl

import puidrec as pr

log = pd.DataFrame({"user_id": [1], "item_id": [1], "rating": [5]})
data: pr.Dataset = pr.Dataset.from_frame(log, scale=(1, 5))
model: pr.Recommender = pr.Recommender("mf", dim=4, l2=0.1, rng=0).fit(data, protocol="rd")
scores: npt.NDArray[Any] = model.predict([1], [1])
pairs: pl.DataFrame = model.predict(log)
intervals: pl.DataFrame = model.predict([1], [1], interval=0.9)
top: pl.DataFrame = model.recommend([1], k=5, exclude=[2], filter=log)
new: pl.DataFrame = model.recommend(history=log, k=5)
like: pl.DataFrame = model.similar_items(1, k=5)
why: pl.DataFrame = model.explain(1, 1)
other: pr.Recommender = model.fold_in(log).partial_fit(log)
found = pr.evaluate(model, data.test, ["uauc", "mse"], by="known")
value: float = found["uauc"]
table: pl.DataFrame = found.to_frame()
means: pl.DataFrame = pr.compare(data, ["mf", ("mine", model), ("table", log)]).to_frame()
verdict: str = pr.audit(model, data, against=lambda users, items: [3.0] * len(users)).summary()
pr.Recommender("mf", dimm=4)  # type: ignore[call-arg]
