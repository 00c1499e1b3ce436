"""Neighbourhood overlap and agreement, exact search, and the relation to supervised scores."""

from __future__ import annotations

import csv
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from uec.audits import AUDITS, load
from uec.audits.agreement import agreement
from uec.audits.agreement import audit as audit_agreement
from uec.audits.neighbours import Neighbours, chance, occurrences, overlap, shared
from uec.audits.overlap import audit, retention, sizes
from uec.audits.relation import mean_relation, relation
from uec.errors import DependencyError, InputError, NotFoundError


def angles(*degrees: float) -> np.ndarray:
    """Unit vectors in the plane, on which neighbours can be seen by eye."""
    radians = np.radians(np.array(degrees, dtype=np.float64))
    return np.stack([np.cos(radians), np.sin(radians)], axis=1)


def loop_neighbours(matrix: np.ndarray, k: int) -> list[set[int]]:
    """The definition, row by row in float64; no ties expected."""
    unit = matrix / np.linalg.norm(matrix, axis=1, keepdims=True)
    found = []
    for i in range(len(unit)):
        others = [j for j in range(len(unit)) if j != i]
        found.append(set(sorted(others, key=lambda j: -float(unit[i] @ unit[j]))[:k]))
    return found


def noisy_pairs(n: int, noise: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Partners that share a 12-dimensional meaning and add noise of their own."""
    rng = np.random.default_rng(seed)
    meaning = rng.standard_normal((n, 12))
    left, right = (meaning + noise * rng.standard_normal((n, 12)) for _ in range(2))
    return left, right


def test_hand_worked_retention() -> None:
    # Left, by angle: 0 10 25 60.  Nearest two: 0:{1,2} 1:{0,2} 2:{1,0} 3:{2,1}
    # Right, by angle: 0 70 10 65.  Nearest two: 0:{2,3} 1:{3,2} 2:{0,3} 3:{1,2}
    # Shared: 0:{2} 1:{2} 2:{0} 3:{1,2}; Jaccard 1/3 1/3 1/3 1; recall 1/2 1/2 1/2 1.
    left, right = angles(0, 10, 25, 60), angles(0, 70, 10, 65)
    jaccard = retention(left, right, (2,))[:, 0]
    np.testing.assert_allclose(jaccard, [1 / 3, 1 / 3, 1 / 3, 1])
    recall = retention(left, right, (2,), measure="recall")[:, 0]
    np.testing.assert_allclose(recall, [1 / 2, 1 / 2, 1 / 2, 1])
    # Nearest one, left 1 0 1 2, right 2 3 0 1: never the same.
    np.testing.assert_array_equal(retention(left, right, (1, 2))[:, 0], 0)


def test_shared_counts_every_length_of_two_lists() -> None:
    left, right = np.array([[4, 1, 0, 2]]), np.array([[1, 3, 4, 0]])
    # k=1: {4}{1}; k=2: {4,1}{1,3}; k=3: {4,1,0}{1,3,4}; k=4: {4,1,0,2}{1,3,4,0}
    counts = shared(left, right, (1, 2, 3, 4), 5)
    np.testing.assert_array_equal(counts, [[0, 1, 2, 3]])
    np.testing.assert_allclose(overlap(counts, (1, 2, 3, 4)), [[0, 1 / 3, 2 / 4, 3 / 5]])
    np.testing.assert_allclose(overlap(counts, (1, 2, 3, 4), "recall"), [[0, 1 / 2, 2 / 3, 3 / 4]])


def test_hand_worked_centring() -> None:
    # By angle -40 -5 5 40; their mean is (0.88, 0), from which they are seen at -100 -37 37 100.
    leaning = angles(-40, -5, 5, 40)
    assert Neighbours(leaning, 0).rows(0, 4, 1).ravel().tolist() == [1, 2, 1, 2]
    assert Neighbours(leaning, 0, centre=True).rows(0, 4, 1).ravel().tolist() == [1, 0, 3, 2]


def test_a_lean_of_one_side_hides_no_neighbours() -> None:
    left, right = noisy_pairs(400, 0.2)
    leaning = right + 6 * np.eye(12)[0]
    plain, centred = (
        [retention(left, side, (10,), centre=centre).mean() for side in (right, leaning)]
        for centre in (False, True)
    )
    assert plain[1] < 0.75 * plain[0]
    assert centred[1] > 0.8 * centred[0]


def test_search_is_exact_across_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    matrix = rng.standard_normal((157, 9))
    monkeypatch.setattr("uec.audits.neighbours._TABLE_CELLS", 157 * 20)
    blocks = list(Neighbours(matrix, 0).blocks(7))
    assert [start for start, _ in blocks] == [0, 20, 40, 60, 80, 100, 120, 140]
    found = np.concatenate([rows for _, rows in blocks])
    assert [set(row) for row in found.tolist()] == loop_neighbours(matrix, 7)


def test_search_tells_cosines_apart_that_all_lie_near_one() -> None:
    # Cosines within 1e-6 of one: plain float32 inner products would tie at random.
    rng = np.random.default_rng(2)
    matrix = np.concatenate([np.full((60, 1), 1000.0), rng.standard_normal((60, 5))], axis=1)
    found = Neighbours(matrix, 0).rows(0, 60, 5)
    expected = loop_neighbours(matrix, 5)
    hits = sum(len(set(row) & want) for row, want in zip(found.tolist(), expected, strict=True))
    assert hits / 300 > 0.99


def test_self_is_left_out_by_index_even_among_copies() -> None:
    # Six copies of one text: wherever a row stands among its copies, it is not its own neighbour.
    matrix = np.concatenate([np.tile(angles(30), (6, 1)), angles(100, 120)])
    for k in (1, 3, 5, 7):
        found = Neighbours(matrix, seed=3).rows(0, 8, k)
        assert not (found == np.arange(8)[:, None]).any()
        assert all(len(set(row)) == k for row in found.tolist())
    five = Neighbours(matrix, seed=3).rows(0, 6, 5)
    assert all(set(row) == set(range(6)) - {i} for i, row in enumerate(five.tolist()))


def test_ties_do_not_look_like_agreement() -> None:
    # Both sides fully collapsed. With ties settled by index every text would keep all neighbours.
    collapsed = np.tile(angles(45), (100, 1))
    scores = [
        retention(collapsed, collapsed.copy(), (10,), seed=2 * seed).mean() for seed in range(200)
    ]
    assert np.mean(scores) == pytest.approx(chance(10, 100), abs=0.012)
    assert max(scores) < 0.5
    centred = retention(collapsed, collapsed.copy(), (10,), centre=True).mean()
    assert centred < 0.5
    matrix = agreement({"a": collapsed, "b": collapsed}, 10)
    assert matrix[0, 1] < 0.5
    # The same seed, the same answer.
    assert retention(collapsed, collapsed.copy(), (10,), seed=6).mean() == scores[3]


@pytest.mark.parametrize(("k", "n"), [(10, 90), (20, 100), (50, 400)])
def test_chance_floor_against_simulation(k: int, n: int) -> None:
    rng = np.random.default_rng(4)
    left, right = rng.standard_normal((2, 3000, n - 1)).argsort(axis=2)[:, :, :k]
    counts = shared(left, right, (k,), n - 1)
    assert overlap(counts, (k,), "recall").mean() == pytest.approx(chance(k, n, "recall"), rel=0.03)
    assert overlap(counts, (k,)).mean() == pytest.approx(chance(k, n), rel=0.08)


def test_chance_by_hand() -> None:
    # 10 % of 1001 texts: p = 100 / 1000, Jaccard 0.1 / 1.9.
    assert chance(100, 1001, "recall") == 0.1
    assert chance(100, 1001) == pytest.approx(0.1 / 1.9)


def test_sizes_round_up_exactly() -> None:
    # In floats 0.1 * 30 = 3.0000000000000004, whose ceiling is 4.
    assert sizes(30, (5,), (10, 20)) == ({"5": 5, "10%": 3, "20%": 6}, ())
    assert sizes(937, (), (10,)) == ({"10%": 94}, ())
    assert sizes(30, (5, 29, 50), (2.5,)) == ({"5": 5, "2.5%": 1}, ("29", "50"))
    with pytest.raises(InputError, match="size 0"):
        sizes(30, (0,), ())


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000), scale=st.floats(1e-3, 1e3))
def test_retention_laws(seed: int, scale: float) -> None:
    rng = np.random.default_rng(seed)
    left, right = noisy_pairs(60, 0.5, seed)
    rotation, _ = np.linalg.qr(rng.standard_normal((12, 12)))
    order = rng.permutation(60)
    ks = (3, 8)
    plain = retention(left, right, ks)
    # Symmetric in the sides, blind to a rotation and to a length of either side, and a permutation
    # of the pairs permutes the answer.
    np.testing.assert_array_equal(plain, retention(right, left, ks))
    np.testing.assert_allclose(plain, retention(left @ rotation, scale * right, ks), atol=1e-12)
    np.testing.assert_array_equal(plain[order], retention(left[order], right[order], ks))
    np.testing.assert_array_equal(retention(left, scale * left, ks), 1)


def test_more_noise_keeps_fewer_neighbours_and_unrelated_sides_reach_chance() -> None:
    scores = [retention(*noisy_pairs(400, noise), (10,)).mean() for noise in (0.1, 0.5, 2.0)]
    assert scores[0] > 0.5 > scores[1] > 0.1 > scores[2]
    left, right = noisy_pairs(400, 0.0)[0], noisy_pairs(400, 0.0, seed=9)[1]
    assert retention(left, right, (10,)).mean() == pytest.approx(chance(10, 400), abs=0.004)


def test_agreement_is_the_pairwise_retention() -> None:
    left, right = noisy_pairs(80, 0.4)
    third = np.random.default_rng(5).standard_normal((80, 3))
    matrix = agreement({"a": left, "b": right, "c": third}, 6)
    expected = [retention(left, right, (6,)), retention(left, third, (6,))]
    np.testing.assert_allclose(matrix[0, 1:], [values.mean() for values in expected])
    np.testing.assert_allclose(matrix, matrix.T)
    np.testing.assert_allclose(np.diag(matrix), 1)


def test_occurrences_by_hand() -> None:
    # By angle 0 10 25 60, nearest two as above: 0 in two lists, 1 in three, 2 in three, 3 in none.
    np.testing.assert_array_equal(occurrences(angles(0, 10, 25, 60), 2, 0), [2, 3, 3, 0])


def test_audit_ranks_members_and_says_so() -> None:
    good, bad = noisy_pairs(300, 0.2), noisy_pairs(300, 1.0)
    lost = noisy_pairs(300, 0.1)[0], noisy_pairs(300, 0.1, seed=8)[1]
    done: list[int] = []
    report = audit({"bad": bad, "good": good, "lost": lost}, progress=done.append)
    assert sum(done) == 3 * 300
    assert report.rank_by == "overlap@5"
    by_name = {row["member"]: row for row in report.rows}
    centred = retention(*good, (5, 6), centre=True).mean(axis=0)
    assert by_name["good"]["overlap@5"] == pytest.approx(centred[0])
    assert by_name["good"]["overlap@2%"] == pytest.approx(centred[1])
    (published,) = audit({"good": good}, centre=False).rows
    assert published["overlap@10"] == pytest.approx(retention(*good, (10,)).mean())
    percent = round(100 * by_name["good"]["overlap@5"])
    assert f"good {percent} %" in report.findings[0]
    assert "chance alone gives 0.8 %" in report.findings[0]
    assert report.findings[1].startswith("lost: no more than chance")
    assert report.findings[-1] == "On this corpus expect the best retrieval from good."
    assert report.warnings == ()
    assert sum(report.details["histogram"]["texts"]["good"]) == 300


def test_subtracting_chance_moves_every_figure_by_its_own_floor() -> None:
    pairs = {"a": noisy_pairs(100, 0.3)}
    plain, less = audit(pairs), audit(pairs, subtract_chance=True)
    for label, k in plain.details["sizes"].items():
        key = f"overlap@{label}"
        assert plain.rows[0][key] - less.rows[0][key] == pytest.approx(chance(k, 100))
        assert plain.details["chance"][key] == pytest.approx(chance(k, 100))


def test_thirty_pairs_are_flagged_and_still_right() -> None:
    left, right = noisy_pairs(30, 0.3)
    report = audit({"a": (left, right)})
    units = [side / np.linalg.norm(side, axis=1, keepdims=True) for side in (left, right)]
    near = [loop_neighbours(unit - unit.mean(axis=0), 10) for unit in units]
    by_loop = [len(a & b) / len(a | b) for a, b in zip(*near, strict=True)]
    assert report.rows[0]["overlap@10"] == pytest.approx(np.mean(by_loop))
    text = " ".join(report.warnings)
    assert "Only 30 texts" in text
    assert "k = 50" in text
    fewer = audit({"a": (left[:24], right[:24])}).warnings
    assert any("Chance alone gives 12 %" in w for w in fewer)  # p = 5/23: p / (2 - p) = 0.122
    assert "overlap@50" not in report.rows[0]


def test_repeated_texts_are_counted() -> None:
    left, right = noisy_pairs(300, 0.3)
    left[7] = left[3]
    left[9] = left[3]
    report = audit({"a": (left, right), "b": (2 * left, right)})
    assert [w for w in report.warnings if w.startswith("2 of 300 left texts")]
    assert not [w for w in report.warnings if "right texts" in w]


def nan_in_row_4(matrix: np.ndarray) -> np.ndarray:
    broken = matrix.copy()
    broken[4, 1] = np.nan
    return broken


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, y: (nan_in_row_4(x), y), r"'b \(left side\)'.*row 4.*NaN"),
        (lambda x, y: (x, np.where(y == y[2, 0], np.inf, y)), r"'b \(right side\)'.*row 2"),
        (lambda x, y: (x, np.concatenate([y[:-1], 0 * y[:1]])), "row 39 is all zeros"),
        (lambda x, y: (x, y[:-1]), r"'b'.*\(40, 12\).*\(39, 12\)"),
        (lambda x, y: (x, y[:, :-1]), r"'b'.*\(40, 12\).*\(40, 11\)"),
        (lambda x, y: (x[:30], y[:30]), r"different numbers of texts: \{'a': 40, 'b': 30\}"),
        (lambda x, y: (x[:, 0], y[:, 0]), r"shape \(40,\)"),
        (lambda x, y: (x.astype(int), y.astype(int)), "int64"),
    ],
)
def test_bad_input_is_named(change, message: str) -> None:
    left, right = noisy_pairs(40, 0.3)
    with pytest.raises(InputError, match=message):
        audit({"a": (left, right), "b": change(left, right)})


def test_members_of_other_dimensions_are_compared() -> None:
    left, right = noisy_pairs(300, 0.3)
    wide = left @ np.random.default_rng(0).standard_normal((12, 40)), right @ np.ones((12, 40))
    report = audit({"narrow": (left, right), "wide": wide})
    assert [row["member"] for row in report.rows] == ["narrow", "wide"]


def test_too_few_texts_or_members() -> None:
    left, right = noisy_pairs(9, 0.3)
    with pytest.raises(InputError, match="9 texts are too few"):
        audit({"a": (left, right)})
    with pytest.raises(InputError, match="no members"):
        audit({})
    with pytest.raises(InputError, match="at least two members"):
        audit_agreement({"a": noisy_pairs(40, 0.3)[0]})
    with pytest.raises(InputError, match="k = 39"):
        audit_agreement(dict(zip("ab", noisy_pairs(40, 0.3), strict=True)), k=39)


def test_agreement_report_names_the_pairs() -> None:
    left, right = noisy_pairs(300, 0.2)
    other = np.random.default_rng(3).standard_normal((300, 5))
    report = audit_agreement({"a": left, "b": right, "c": other})
    assert "a and b" in report.findings[0]
    assert report.rank_by is None
    matrix = np.array(report.details["overlap"])
    assert report.rows[2]["mean_agreement"] == pytest.approx(matrix[2, :2].mean())


def test_load_finds_audits_and_refuses_others() -> None:
    assert load("overlap") is audit
    assert set(AUDITS) >= {"overlap", "agreement", "ica", "geometry"}
    with pytest.raises(NotFoundError, match="no audit 'iq'"):
        load("iq")


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.decomposition", None)
    monkeypatch.delitem(sys.modules, "uec.audits.ica", raising=False)
    with pytest.raises(DependencyError, match=r"'sklearn'.*uec\[audit\]"):
        load("ica")


# relation: rank correlation with a supervised score


def test_relation_by_hand() -> None:
    # Ranks 1 2 3 4 against 1 2 4 3: rho = 1 - 6 * 2 / (4 * 15) = 0.8; without d all in order: 1.
    rows = [
        {"model": name, "measure": m, "score": s}
        for name, m, s in zip("abcd", (0.1, 0.2, 0.3, 0.4), (1, 2, 9, 5), strict=True)
    ]
    result = relation(rows, "measure", "score", n_resamples=500)
    assert result.rho == pytest.approx(0.8)
    assert result.without["d"] == pytest.approx(1.0)
    assert result.without["a"] == pytest.approx(0.5)
    assert -1 <= result.low <= result.rho <= result.high <= 1


def test_mean_relation_of_two_tasks() -> None:
    names = "abcde"
    first = [{"member": n, "m": m, "s": m} for n, m in zip(names, range(5), strict=True)]
    second = [{**row, "s": -row["m"]} for row in first]
    both = mean_relation([first, second], "m", "s", n_resamples=300)
    # Every resample is in order on one task and in reverse on the other.
    assert (both.rho, both.low, both.high) == (0, 0, 0)
    assert both.without == dict.fromkeys(names, 0)
    assert mean_relation([first], "m", "s") == relation(first, "m", "s")
    with pytest.raises(InputError, match="the same ones in the same order"):
        mean_relation([first, first[::-1]], "m", "s")
    with pytest.raises(InputError, match="no task"):
        mean_relation([], "m", "s")


def test_relation_refuses_what_cannot_be_ranked() -> None:
    rows = [{"m": i, "s": i} for i in range(5)]
    with pytest.raises(InputError, match="3 models are too few"):
        relation(rows[:3], "m", "s")
    with pytest.raises(InputError, match="no 'x'"):
        relation(rows, "x", "s")
    with pytest.raises(InputError, match="the same for all"):
        relation([{**row, "m": 1} for row in rows], "m", "s")
    with pytest.raises(InputError, match="not finite"):
        relation([{**row, "m": float("nan")} for row in rows], "m", "s")


@pytest.mark.parametrize(
    ("measure", "rho", "low", "high", "multilingual_only"),
    [
        ("knn10", 0.975, 0.91, 0.99, 0.940),
        ("gini32", 0.945, 0.83, 0.98, 0.882),
        ("peak32", 0.914, None, None, 0.866),
        ("gini64", 0.888, None, None, 0.719),
        ("r2", 0.855, None, None, 0.723),
    ],
)
def test_relation_of_25_models_on_tatoeba(
    measure: str, rho: float, low: float | None, high: float | None, multilingual_only: float
) -> None:
    """The figures of the structure-retention paper's repository, Finnish and English."""
    folder = os.environ.get("UEC_TEST_DATA")
    if not folder:
        pytest.skip("UEC_TEST_DATA is not set")
    with (Path(folder) / "tatoeba_fin_eng_25models.csv").open() as lines:
        rows = list(csv.DictReader(lines))
    for row in rows:
        row["kind"] = "english" if float(row["mteb_score"]) < 0.1 else "multilingual"
    result = relation(rows, measure, "mteb_score", group="kind")
    assert result.n_models == 25
    assert result.rho == pytest.approx(rho, abs=5e-4)
    assert result.without["english"] == pytest.approx(multilingual_only, abs=5e-4)
    if low is not None and high is not None:
        assert result.low == pytest.approx(low, abs=0.01)
        assert result.high == pytest.approx(high, abs=0.01)
