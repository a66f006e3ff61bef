"""The paths as a client sees them: answers against the library, refusals in one form, a page
without a network."""

from __future__ import annotations

import json
import re
import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from puidrec.data.dataset import Dataset
from puidrec.data.synthetic import simulate
from puidrec.methods import METHODS
from puidrec.model import Recommender
from puidrec.serve import Seen, Unknown
from puidrec.serve import app as module
from puidrec.serve.limits import Guard, Limits, Policy, Refused
from puidrec.serve.schema import Health, ModelCard, RecommendResponse, ScoreResponse


def recommended(answer: Any) -> list[dict[str, Any]]:
    assert answer.status_code == 200, answer.text
    RecommendResponse.model_validate(answer.json())
    return answer.json()["recommendations"]


def test_recommend_is_the_library_s(client: Any, model: Recommender) -> None:
    found = recommended(client.post("/recommend", {"users": [5, 3, 5], "k": 4}))
    for entry, user in zip(found, [5, 3, 5], strict=True):
        expected = model.recommend([user], k=4, scale="unit")
        assert entry["user_id"] == user
        assert entry["basis"] == "trained"
        assert entry["items"] == expected["item_id"].to_list()
        np.testing.assert_allclose(entry["scores"], expected["score"], atol=1e-6)


def test_a_history_is_folded_in_as_by_the_library(
    client: Any, client_of: Any, model: Recommender
) -> None:
    known, low, high = model.item_ids_.ids, model.rating_scale_.low, model.rating_scale_.high
    rows = {"item_id": known[:3], "rating": [high, low, high]}
    expected = model.recommend(9_999, history=rows, k=4, scale="unit")
    history = [
        {"item": item, "rating": rating}
        for item, rating in zip(rows["item_id"], rows["rating"], strict=True)
    ]
    history.append({"item": 10**9, "rating": low})  # unknown to the model: it counts for nothing
    user = {"id": 9_999, "history": history}
    found = recommended(client.post("/recommend", {"users": [5, user, 3], "k": 4}))
    assert [entry["basis"] for entry in found] == ["trained", "history", "trained"]
    assert found[1]["items"] == expected["item_id"].to_list()
    np.testing.assert_allclose(found[1]["scores"], expected["score"], atol=1e-6)
    strange = {"id": 9_999, "history": history[3:]}  # no item of it is known
    assert recommended(client.post("/recommend", {"users": [strange]}))[0]["basis"] == "prior"
    likes = {"id": 5, "history": [{"item": known[0]}]}  # a known user: the log no longer counts
    every = recommended(client.post("/recommend", {"users": [likes], "k": 100}))[0]["items"]
    assert set(every) == set(known) - {known[0]}
    pair = {"pairs": [{"user": likes, "item": known[1]}]}
    answer = client.post("/score", pair).json()
    one = model.fold_in({"user_id": [5], "item_id": [known[0]]}).predict(5, known[1], scale="unit")
    np.testing.assert_allclose(answer["scores"], one, atol=1e-6)
    assert answer["user_basis"] == ["history"]
    wrong = {"users": [{"id": 5, "history": [{"item": known[0], "rating": high + 1}]}]}
    client.refused("/recommend", wrong, 422, "invalid", "rating", "scale")
    labels = Recommender("ips", loss="cross-entropy", dim=2, epochs=2, l2=0.1)
    asked = client_of(labels.fit(simulate("mixed", 30, 20, density=0.3, rng=0).data))
    asked.refused("/recommend", {"users": [likes]}, 422, "invalid", "least squares")


def test_stable_says_up_to_which_gamma_an_item_stays(
    client: Any, client_of: Any, tiny_data: Dataset
) -> None:
    model = Recommender(dim=3, l2=0.1, epochs=10, rng=0).fit(tiny_data)
    asked = client_of(model)
    expected = model.recommend([5, 3], k=6, stable=True)["gamma_max"].to_numpy().reshape(2, 6)
    found = recommended(asked.post("/recommend", {"users": [5, 3, 9999], "k": 6, "stable": True}))
    for entry, last in zip(found, expected, strict=False):
        assert [
            np.inf if gamma is None else gamma for gamma in entry["gamma_max"]
        ] == pytest.approx(last.tolist())
    assert found[2]["gamma_max"] is None  # not in training: nothing is known of the path
    assert all(gamma is None or gamma >= 1.0 for gamma in found[0]["gamma_max"])
    some = model.recommend([5], k=40, exclude_seen=False)["item_id"].to_list()[:7]
    listed = recommended(
        asked.post("/recommend", {"users": [5], "items": some, "k": 7, "stable": True})
    )
    assert listed[0]["gamma_max"] == [None] * 7  # all of seven stay among the seven best
    assert "gamma_max" not in recommended(asked.post("/recommend", {"users": [5], "k": 2}))[0]
    client.refused("/recommend", {"users": [5], "stable": True}, 422, "invalid", "no path along Γ")


def test_text_ids_go_in_and_out(client_of: Any, text_model: Recommender) -> None:
    client = client_of(text_model)
    found = recommended(client.post("/recommend", {"users": ["u7", "nobody"], "k": 3}))
    assert found[0]["items"] == text_model.recommend(["u7"], k=3)["item_id"].to_list()
    assert [entry["basis"] for entry in found] == ["trained", "prior"]
    client.refused("/recommend", {"users": [7]}, 422, "wrong_id_type", "text")


def test_whole_numbers_may_be_written_with_a_point(client: Any) -> None:
    plain, pointed = client.post("/recommend", {"users": [5], "k": 3}), {"users": [5.0], "k": 3.0}
    assert client.post("/recommend", pointed).json() == plain.json()


def test_seen_items_are_left_out_unless_wanted(client: Any, model: Recommender) -> None:
    without = recommended(client.post("/recommend", {"users": [5], "k": 40}))[0]["items"]
    everything = recommended(
        client.post("/recommend", {"users": [5], "k": 40, "exclude_seen": False})
    )[0]["items"]
    assert sorted(everything) == list(range(40))
    start, item = model.logged_pairs()
    assert set(everything) - set(without) == set(item[start[5] : start[6]].tolist())


def test_held_out_rows_of_the_log_are_left_out_as_well(client_of: Any, tiny_data: Dataset) -> None:
    model = Recommender("bias").fit(replace(tiny_data, uniform=None, repeated=None))
    log, everyone = tiny_data.logged.to_frame(), model.user_ids_.ids.to_list()
    found = recommended(client_of(model).post("/recommend", {"users": everyone, "k": 40}))
    shown = {(entry["user_id"], item) for entry in found for item in entry["items"]}
    assert not shown & set(log.select("user_id", "item_id").iter_rows())
    assert len(shown) == 60 * 40 - log.height
    assert model.held_out_ is not None


def test_unknown_users_get_the_average_user(client: Any, model: Recommender) -> None:
    entry = recommended(client.post("/recommend", {"users": [10**6], "k": 40}))[0]
    scores = model.predict([10**6] * 40, np.arange(40), scale="unit")
    assert entry["basis"] == "prior"
    np.testing.assert_allclose(entry["scores"], np.sort(scores)[::-1], atol=1e-6)


def test_ids_of_any_size_are_unknown_ids(client: Any) -> None:
    for user in (2**63, -(10**30)):
        entry = recommended(client.post("/recommend", {"users": [user]}))[0]
        assert (entry["user_id"], entry["basis"]) == (user, "prior")


def test_unknown_users_and_items_are_refused_where_configured(
    client_of: Any, model: Recommender
) -> None:
    client = client_of(model, Unknown.REFUSE)
    problem = client.refused("/recommend", {"users": [5, 10**6]}, 404, "unknown_user")
    assert problem["field"] == "users.1"
    client.refused("/recommend", {"users": [5], "items": [1, -1]}, 404, "unknown_item")
    client.refused("/score", {"pairs": [{"user": 1, "item": -1}]}, 404, "unknown_item")
    known_by_features = {"id": 10**6, "features": {"age": 30.0}}
    assert (
        recommended(client.post("/recommend", {"users": [known_by_features]}))[0]["basis"]
        == "features"
    )


def test_a_filter_limits_the_items(client: Any, model: Recommender) -> None:
    body = {"users": [5], "k": 10, "items": [3, 30, 3, 999], "exclude_seen": False}
    answer = client.post("/recommend", body)
    entry = recommended(answer)[0]
    scores = dict(zip([3, 30], model.predict([5, 5], [3, 30], scale="unit"), strict=True))
    assert entry["items"] == sorted(scores, key=scores.get, reverse=True)
    assert answer.json()["unknown_items"] == [999]


def test_cold_start_users_with_features_are_told_apart(client: Any) -> None:
    users = [{"id": -1, "features": {"age": age}} for age in (20.0, 70.0)] + [
        {"id": -2},
        {"id": 5, "features": {"age": 1}},
    ]
    found = recommended(client.post("/recommend", {"users": users, "k": 5}))
    assert [entry["basis"] for entry in found] == ["features", "features", "prior", "trained"]
    assert found[0]["scores"] != found[1]["scores"]
    client.refused(
        "/recommend",
        {"users": [{"id": -1, "features": {"agee": 1}}]},
        422,
        "invalid",
        "agee",
        "age",
    )
    client.refused(
        "/recommend", {"users": [{"id": 5, "features": {"age": "x"}}]}, 422, "invalid", "age"
    )


def test_new_items_rank_beside_the_catalogue(
    client: Any, client_of: Any, text_model: Recommender
) -> None:
    new = {"id": 777, "features": {"quality": 3.0}}
    body = {"users": [5], "k": 41, "exclude_seen": False}
    entry = recommended(client.post("/recommend", {**body, "new_items": [new]}))[0]
    assert sorted(entry["items"]) == [*range(40), 777]
    score = client.post("/score", {"pairs": [{"user": 5, "item": new}]}).json()
    assert score["item_basis"] == ["features"]
    assert entry["scores"][entry["items"].index(777)] == pytest.approx(score["scores"][0], abs=1e-6)
    both = recommended(
        client.post("/recommend", {**body, "items": [3, new], "new_items": [{"id": 4}]})
    )[0]
    assert sorted(both["items"]) == [3, 4, 777]
    client.refused("/recommend", {**body, "new_items": [{"id": 777}]}, 404, "unknown_item")
    item = {"id": "new", "features": {"quality": 3.0}}
    client_of(text_model).refused(
        "/recommend",
        {"users": ["u1"], "new_items": [item]},
        404,
        "unknown_item",
        "reads no item features",
    )


def test_scores_are_predictions(client: Any, model: Recommender) -> None:
    pairs = [(1, 2), (59, 39), (10**6, 3), (4, 10**6)]
    answer = client.post(
        "/score", {"pairs": [{"user": user, "item": item} for user, item in pairs]}
    )
    ScoreResponse.model_validate(answer.json())
    np.testing.assert_allclose(
        answer.json()["scores"], model.predict(*zip(*pairs, strict=True), scale="unit"), atol=1e-6
    )
    assert answer.json()["user_basis"] == ["trained", "trained", "prior", "trained"]
    assert answer.json()["item_basis"] == ["trained", "trained", "trained", "prior"]


def test_health_and_model(client: Any, model: Recommender) -> None:
    health = client.get("/health").json()
    assert health == {"status": "ok", "method": "rd-ips", "users": 60, "items": 40}
    Health.model_validate(health)
    card = client.get("/model").json()
    ModelCard.model_validate(card)
    assert card["data_sha256"] == "ab" * 32
    assert card["gamma"] == model.report_["gamma"]
    assert card["metrics"]["uauc"] == 0.7
    assert card["settings"]["dim"] == 4
    assert "age" in card["user_features"]


LONG = "x" * 5000
BAD = [
    ({}, "users"),
    ({"users": []}, "users"),
    ({"users": 5}, "users"),
    ({"users": [1.5]}, "users.0"),
    ({"users": [True]}, "users.0"),
    ({"users": [None]}, "users.0"),
    ({"users": [{"id": 1, "features": {"age": 10**400}}]}, "users"),
    ({"users": [""]}, "users.0"),
    ({"users": [[1]]}, "users.0"),
    ({"users": [{"id": 1, "features": {"a": {"b": 1}}}]}, "users.0.features.a"),
    ({"users": [{"features": {}}]}, "users.0.id"),
    ({"users": [1], "k": 0}, "k"),
    ({"users": [1], "k": -5}, "k"),
    ({"users": [1], "k": "10"}, "k"),
    ({"users": [1], "k": 2.5}, "k"),
    ({"users": [1], "k": None}, "k"),
    ({"users": [1], "exclude_seen": "no"}, "exclude_seen"),
    ({"users": [1], "items": []}, "items"),
    ({"users": [1], LONG: 1}, LONG[:40]),
]


@pytest.mark.parametrize(("body", "field"), BAD)
def test_bad_requests_name_their_field(client: Any, body: dict[str, Any], field: str) -> None:
    assert client.refused("/recommend", body, 422, "invalid")["field"] == field


@pytest.mark.parametrize("k", [1001, 10**9, 10**30])
def test_k_is_bounded(client: Any, k: int) -> None:
    client.refused("/recommend", {"users": [1], "k": k}, 422, "too_many", "1,000")


def test_numbers_of_things_are_bounded(client_of: Any, model: Recommender) -> None:
    client = client_of(model, results=20, k=10)
    for body, field in (
        ({"users": [1] * 1001, "k": 1}, "users"),
        ({"users": [1] * 3, "k": 7}, "users"),
        ({"users": [1], "items": [1] * 20_001}, "items"),
        ({"users": [1], "new_items": [{"id": 1}] * 20_001}, "new_items"),
        ({"users": [{"id": 1, "history": [{"item": 1}] * 20_001}]}, "users.0.history"),
        ({"users": [1], "k": 11}, "k"),
    ):
        assert client.refused("/recommend", body, 422, "too_many", "at most")["field"] == field
    pairs = [{"user": 1, "item": 1}] * 10_001
    client.refused("/score", {"pairs": pairs}, 422, "too_many", "at most 10000")
    client.refused("/recommend", {"users": [1], "padding": "x" * 5 * 2**20}, 413, "body_too_large")


RAW = [
    (b"", 422, "invalid"),
    (b"{", 400, "malformed"),
    (b"nonsense", 400, "malformed"),
    (b"\xff\xfe\x00", 400, "malformed"),
    (b"[" * 90_000, 400, "malformed"),
    (b"[" * 200_000, 422, "too_many"),
    (b'{"users": [' + b"9" * 10_000 + b"]}", 400, "malformed"),
    (b'{"users": [NaN]}', 422, "invalid"),
    (b'{"users": [{"id": 1, "features": {"age": Infinity}}]}', 422, "invalid"),
    (b'{"users": ["\\ud800"]}', 400, "malformed"),
    (b'{"users": [1], "\\ud800": 1}', 400, "malformed"),
    (b"null", 422, "invalid"),
    (b"[]", 422, "invalid"),
    (b"7", 422, "invalid"),
]


@pytest.mark.parametrize(("body", "status", "code"), RAW)
def test_malformed_bodies_get_a_typed_answer(
    client: Any, body: bytes, status: int, code: str
) -> None:
    for path in ("/recommend", "/score"):
        answer = client.ask(
            "POST", path, content=body, headers={"content-type": "application/json"}
        )
        assert answer.status_code == status, answer.text
        assert answer.json()["error"]["code"] == code
        assert len(answer.content) < 1000


def test_other_content_types_paths_and_verbs(client: Any) -> None:
    answer = client.ask(
        "POST", "/recommend", content=b'{"users": [1]}', headers={"content-type": "text/plain"}
    )
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "invalid")
    assert "content-type" in answer.json()["error"]["message"]
    assert client.get("/nothing").json()["error"]["code"] == "not_found"
    wrong = client.get("/recommend")
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")
    assert client.ask("HEAD", "/health").status_code == 200
    assert (
        client.get("/health/").status_code == 404
    )  # no redirection, which would repeat whatever host a client names


def test_an_internal_error_tells_the_client_nothing_of_its_cause(
    client_of: Any, model: Recommender, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = client_of(model)
    monkeypatch.setattr(client.app.state.serving.answers, "plan", lambda body: 1 / 0)
    client.refused("/recommend", {"users": [1]}, 500, "internal", "log")


def test_an_answer_has_a_time(
    client_of: Any, model: Recommender, monkeypatch: pytest.MonkeyPatch
) -> None:
    import time

    client = client_of(model, seconds=0.05)
    engine = client.app.state.serving.answers.engine
    monkeypatch.setattr(engine, "best", lambda query: time.sleep(0.5))
    client.refused("/recommend", {"users": [1]}, 503, "overloaded", "0.05 s")


def test_the_document_states_the_limits_and_the_names(client_of: Any, model: Recommender) -> None:
    document = client_of(model, k=77).get("/openapi.json").json()
    forms = document["components"]["schemas"]
    assert forms["RecommendRequest"]["properties"]["k"]["maximum"] == 77
    assert forms["RecommendRequest"]["properties"]["users"]["maxItems"] == 1000
    assert forms["ScoreRequest"]["properties"]["pairs"]["maxItems"] == 10_000
    assert forms["Method"]["enum"] == list(METHODS)
    assert forms["Basis"]["enum"] == ["trained", "history", "features", "prior"]
    assert set(document["paths"]) == {
        "/health",
        "/livez",
        "/model",
        "/readyz",
        "/recommend",
        "/score",
    }


def test_the_page_loads_nothing(client: Any) -> None:
    assert client.get("/").headers["location"] == "/docs"
    answer = client.get("/docs")
    page = answer.text
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert not re.search(r"<script|<link|<img|@import|url\(|src=", page)
    assert re.findall(r'href="([^"]*)"', page) == ["/openapi.json"]
    for word in (
        "/recommend",
        "exclude_seen",
        "new_items",
        "At most 1,000",
        "curl",
        "body_too_large",
        "rd-ips",
    ):
        assert word in page


def test_the_page_escapes_what_it_shows(client_of: Any, text_model: Recommender) -> None:
    client = client_of(text_model)
    client.app.state.serving.answers.card["data"] = "<script>alert(1)</script>"
    assert "<script" not in client.get("/docs").text


def test_serve_run_reads_a_run_folder(model: Recommender, tmp_path, refusal) -> None:
    refusal(lambda: module.serve_run(tmp_path), "not a run folder")
    model.save(tmp_path / "model")
    (tmp_path / "metrics.json").write_text(json.dumps({"protocol": "rd"}))
    refusal(lambda: module.serve_run(tmp_path), "environment.json")
    (tmp_path / "environment.json").write_text(json.dumps({"data_sha256": "cd"}))
    assert module.serve_run(tmp_path).state.serving.answers.card["data_sha256"] == "cd"


def test_what_users_rated_is_not_told_item_by_item(
    client: Any, client_of: Any, model: Recommender
) -> None:
    """A list of all items with what was rated left out of it was the user's whole history."""
    start, item = model.logged_pairs()
    rated, everything = set(item[start[5] : start[6]].tolist()), list(range(40))
    assert rated
    body = {"users": [5], "items": everything, "k": 40}
    problem = client.refused(
        "/recommend", {**body, "exclude_seen": True}, 422, "invalid", "exclude"
    )
    assert problem["field"] == "exclude_seen"
    assert (
        sorted(recommended(client.post("/recommend", body))[0]["items"]) == everything
    )  # and not by default either
    trusting = client_of(model, seen=Seen.ALWAYS)
    left = recommended(trusting.post("/recommend", {**body, "exclude_seen": True}))[0]["items"]
    assert set(everything) - set(left) == rated
    forgetful = client_of(model, seen=Seen.NEVER)
    assert len(recommended(forgetful.post("/recommend", {"users": [5], "k": 40}))[0]["items"]) == 40
    forgetful.refused("/recommend", {"users": [5], "exclude_seen": True}, 422, "invalid", "forgot")


def test_items_can_be_left_out_and_ranks_skipped(client: Any) -> None:
    body = {"users": [5, 7], "k": 40, "exclude_seen": False}
    whole = [entry["items"] for entry in recommended(client.post("/recommend", body))]
    pages = [
        recommended(client.post("/recommend", {**body, "k": 15, "offset": offset}))
        for offset in (0, 15, 30, 45)
    ]
    for row in (0, 1):
        assert [item for page in pages for item in page[row]["items"]] == whole[row]
        assert all(len(page[row]["items"]) == len(page[row]["scores"]) for page in pages)
    unwanted = [*whole[0][:3], 999]
    left = [
        entry["items"]
        for entry in recommended(client.post("/recommend", {**body, "exclude": unwanted}))
    ]
    assert left == [[item for item in row if item not in unwanted] for row in whole]
    new = {"id": 777, "features": {"quality": 3.0}}
    some = {**body, "items": [1, 2, 3], "new_items": [new], "exclude": [2, 777]}
    assert sorted(recommended(client.post("/recommend", some))[0]["items"]) == [1, 3]
    client.refused("/recommend", {**body, "exclude": ["x"]}, 422, "wrong_id_type")
    client.refused("/recommend", {**body, "k": 1, "offset": 1001}, 422, "too_many", "offset")


def test_large_answers_are_those_of_single_users(client: Any, model: Recommender) -> None:
    users = [int(user) for user in np.random.default_rng(0).integers(0, 60, 300)]
    found = recommended(client.post("/recommend", {"users": users, "k": 30}))
    single = {
        user: recommended(client.post("/recommend", {"users": [user], "k": 30}))[0]
        for user in set(users)
    }
    assert [entry["user_id"] for entry in found] == users
    for entry in found:
        assert entry["items"] == single[entry["user_id"]]["items"]


def test_readiness_takes_its_turn(client_of: Any, model: Recommender) -> None:
    """As a single user does: where that does not come in time, the server is not ready."""
    client = client_of(model, seconds=0.1)
    assert client.get("/readyz").json() == {"status": "ok"}
    gate = threading.Event()
    client.app.state.worker.submit(gate.wait, 10)
    answer = client.get("/readyz")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert client.get("/livez").status_code == client.ask("HEAD", "/livez").status_code == 200
    gate.set()
    assert client.get("/readyz").status_code == 200


def test_what_is_under_way_is_counted(client_of: Any, model: Recommender) -> None:
    guard = Guard(client_of(model).app, Policy(limits=Limits(all_results=150)))
    with guard.holding("results", 90):
        with (
            pytest.raises(Refused, match="results are under way") as refused,
            guard.holding("results", 61),
        ):
            pass
        with guard.holding("results", 60):
            pass
    assert refused.value.response().headers["retry-after"] == "1"
    assert not guard.held["results"]
    with guard.holding(
        "results", 10**6
    ):  # a single request may be as large as its own limits let it be
        pass


@pytest.mark.parametrize("method", ["all-rank", "ease", "spectrum"])
def test_a_model_of_likes_is_served(method: str, client_of: Any, tiny_data: Dataset) -> None:
    likes = tiny_data.logged.to_frame().select("user_id", "item_id")
    model = Recommender(method, rng=0, **({} if method == "ease" else {"dim": 4, "l2": 0.1})).fit(
        likes
    )
    user = int(likes["user_id"][0])
    entry = recommended(client_of(model).post("/recommend", {"users": [user], "k": 4}))[0]
    best = model.recommend(user, k=4)
    assert entry["items"] == best["item_id"].to_list()
    np.testing.assert_allclose(
        entry["scores"], best["score"], atol=1e-6
    )  # likes are on 0..1 already
    assert not model.trained_on([user] * 4, entry["items"]).any()


HALF = ["\\ud800", "\\udfff", "a\\udc00b"]  # as JSON writes them


@pytest.mark.parametrize("half", HALF)
@pytest.mark.parametrize(
    "body",
    [
        '{"users": [{"id": 1, "features": {"age": "%s"}}]}',
        '{"users": [{"id": 1, "features": {"age": ["%s"]}}]}',
        '{"users": [{"id": 1, "features": {"%s": 1}}]}',
        '{"users": ["%s"]}',
        '{"users": [1], "items": [{"id": 900, "features": {"quality": "%s"}}]}',
        '{"users": [1], "new_items": [{"id": 900, "features": {"quality": "%s"}}]}',
        '{"users": [1], "exclude": ["%s"]}',
        '{"%s": [1]}',
    ],
)
def test_half_a_character_is_refused_wherever_it_is(client: Any, body: str, half: str) -> None:
    escaped = (body % half).encode()  # JSON, but no text
    raw = (body % json.loads(f'"{half}"')).encode("utf-8", "surrogatepass")  # not even UTF-8
    for content in (escaped, raw):
        answer = client.ask(
            "POST", "/recommend", content=content, headers={"content-type": "application/json"}
        )
        found = answer.status_code, answer.json()["error"]["code"]
        assert found == (400, "malformed"), answer.text
        assert answer.text.isascii()


def test_whole_characters_and_control_characters_are_text(
    client_of: Any, text_model: Recommender
) -> None:
    users = ["\U0001f600", "\x00\x1f\x7f", "\u2028\ufeff\ufffe", "u7"]
    body = json.dumps({"users": users})  # as escapes, a pair of surrogates is one character
    answer = client_of(text_model).ask(
        "POST", "/recommend", content=body, headers={"content-type": "application/json"}
    )
    assert [entry["user_id"] for entry in recommended(answer)] == users
