"""Independent components: the measures by hand, FastICA against known sources, the audit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ortho_group
from sklearn.decomposition import FastICA

from uec.audits.concentration import gini, peak, peak_set, variation
from uec.audits.ica import audit, differences, principal, sources
from uec.errors import InputError


def pairs_with(
    side: float, noise: float = 0.3, n: int = 400, d: int = 12, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Partners that share heavy-tailed meanings, mixed; one source tells the side."""
    rng = np.random.default_rng(seed)
    meaning = rng.laplace(size=(n, d))
    left, right = (meaning + noise * rng.laplace(size=(n, d)) for _ in range(2))
    left[:, 0] = side + 0.1 * rng.laplace(size=n)
    right[:, 0] = -side + 0.1 * rng.laplace(size=n)
    mixing = ortho_group.rvs(d, random_state=seed)
    return left @ mixing, right @ mixing


def test_gini_by_hand() -> None:
    # x = 1 3: mean absolute difference over all ordered pairs (0 + 2 + 2 + 0) / 4 = 1, over twice
    # the mean 4: 1/4.  x = 0 1 2: (4 * 1 + 2 * 2) / 9 = 8/9 over 2: 4/9.
    assert gini(np.array([3.0, 1.0])) == pytest.approx(1 / 4)
    assert gini(np.array([0.0, 2.0, 1.0])) == pytest.approx(4 / 9)
    assert gini(np.full(32, 0.7)) == pytest.approx(0)
    assert gini(np.eye(32)[5]) == pytest.approx(31 / 32)


@given(st.lists(st.floats(0.01, 100), min_size=2, max_size=20), st.floats(0.01, 100))
def test_gini_is_the_mean_absolute_difference_and_has_no_scale(
    numbers: list[float], scale: float
) -> None:
    values = np.array(numbers)
    by_definition = np.abs(values[:, None] - values).mean() / (2 * values.mean())
    assert gini(values) == pytest.approx(by_definition, abs=1e-9)
    assert gini(scale * values[::-1]) == pytest.approx(gini(values), abs=1e-9)


def test_peak_variation_and_peak_set_by_hand() -> None:
    values = np.array([1.0, 2.0, 3.0, 2.0])
    assert peak(values) == pytest.approx(3 / 2)
    assert variation(values) == pytest.approx(np.sqrt(0.5) / 2)
    # 0 1 2 ... 8 and x: quartiles at 2.25 and 6.75 of ten values, so the fence is 6.75 + 3 * 4.5.
    base = np.arange(9.0)
    assert peak_set(np.append(base, 20.0)).tolist() == []
    assert peak_set(np.append(base, 20.5)).tolist() == [9]
    assert peak_set(np.append(20.5, base)).tolist() == [0]


def test_differences_by_hand() -> None:
    left, right = np.array([[1.0, 0.0], [-1.0, 4.0]]), np.array([[3.0, 0.0], [0.0, 1.0]])
    np.testing.assert_allclose(differences(left, right), [1.5, 1.5])


def test_a_source_that_tells_the_sides_differs_by_two() -> None:
    # Unit variance and values near -1 and 1: |difference| near 2. The other sources share meaning.
    left, right = pairs_with(side=5.0)
    found = sources(principal(left, right, 12), 12)
    delta = np.sort(differences(found.left, found.right))
    assert found.converged
    assert delta[-1] == pytest.approx(2, abs=0.01)
    # The rest: noise of variance 2 * 0.09 each side over 2 * 1.09; mean |Laplace difference| is
    # 1.5 b, with b = 0.3 / sqrt(2.18): 0.305.
    np.testing.assert_allclose(delta[:-1], 0.305, atol=0.05)
    stacked = np.concatenate([found.left, found.right])
    np.testing.assert_allclose(stacked.std(axis=0), 1)
    np.testing.assert_allclose(stacked.T @ stacked / 800, np.eye(12), atol=1e-8)


def test_projecting_first_changes_nothing() -> None:
    # scikit-learn's own whitening of all dimensions, down to fewer components.
    left, right = pairs_with(side=3.0, d=20)
    stacked = np.concatenate([left, right])
    direct = FastICA(8, whiten="unit-variance", random_state=0, max_iter=2000).fit_transform(
        stacked
    )
    found = sources(principal(left, right, 12), 8)
    expected = np.sort(differences(direct[:400], direct[400:]))
    np.testing.assert_allclose(np.sort(differences(found.left, found.right)), expected, atol=0.02)


def test_unaffected_by_rotation_and_order_of_pairs() -> None:
    left, right = pairs_with(side=2.0)
    rotation = ortho_group.rvs(12, random_state=1)
    order = np.random.default_rng(2).permutation(400)
    before = sources(principal(left, right, 12), 12)
    after = sources(principal(left[order] @ rotation, right[order] @ rotation, 12), 12)
    np.testing.assert_allclose(
        np.sort(differences(before.left, before.right)),
        np.sort(differences(after.left, after.right)),
        atol=0.01,
    )


def test_audit_ranks_understanding_above_unrelated_sides() -> None:
    good = pairs_with(side=1.0, noise=0.2)
    poor = pairs_with(side=1.0, noise=2.0)
    unrelated = good[0], pairs_with(side=1.0, seed=7)[1]
    done: list[int] = []
    report = audit(
        {"poor": poor, "good": good, "unrelated": unrelated},
        components=(12, 6),
        progress=done.append,
    )
    assert sum(done) == 3 * 400
    figures = {row["member"]: row for row in report.rows}
    assert report.rank_by == "gini12"
    assert figures["good"]["gini12"] > 1.2 * figures["poor"]["gini12"]
    assert figures["good"]["gini12"] > 2 * figures["unrelated"]["gini12"]
    assert figures["good"]["peaks12"] == 1
    assert figures["good"]["peak12"] > 3
    # Broken pairs: every meaning differs, the side stays; the figure falls.
    assert figures["good"]["gini12_shuffled"] < 0.5 * figures["good"]["gini12"]
    assert figures["good"]["converged12"]
    assert 1 < figures["good"]["n_iter12"] < 2000
    assert figures["good"]["gini12_spread"] < 0.02
    assert report.findings[-1].startswith("unrelated: the sides differ in all")
    assert "good" in report.findings[0].split(":")[1].split(",")[0]
    assert len(report.details["differences"]["good"]["6"]) == 6


def test_gini_alone_would_be_fooled_and_the_control_says_so() -> None:
    # No shared meaning at all, but a wide gap between the sides: the Gini is high all the same.
    left, right = pairs_with(side=5.0, noise=0.0)
    unrelated = right[np.random.default_rng(0).permutation(400)]
    report = audit({"m": (left, unrelated)}, components=(12,))
    row = report.rows[0]
    assert row["gini12"] == pytest.approx(row["gini12_shuffled"], abs=0.02)
    assert any(line.startswith("m: with the pairs broken") for line in report.findings)


def test_failure_to_converge_is_reported() -> None:
    # Gaussian noise has no independent directions to converge to.
    rng = np.random.default_rng(0)
    report = audit({"m": tuple(rng.standard_normal((2, 300, 16)))}, components=(16,), max_iter=3)
    assert report.rows[0]["converged16"] is False
    assert report.rows[0]["n_iter16"] == 3
    assert any("did not converge within 3 iterations for m (" in w for w in report.warnings)


def test_too_few_pairs_or_dimensions() -> None:
    # 30 pairs are 60 rows: enough for 8 components, though thin for them, and not for 64.
    left, right = pairs_with(side=1.0, n=30)
    report = audit({"m": (left, right)}, components=(8, 64), n_seeds=1)
    assert report.settings["components"] == [8]
    text = " ".join(report.warnings)
    assert "64 components: left out" in text
    assert "Only 60 rows for 8 components" in text
    with pytest.raises(InputError, match="30 pairs are too few for 64"):
        audit({"m": (left, right)}, components=(64,))
    with pytest.raises(InputError, match="'m': 32 components need at least as many dimensions"):
        audit({"m": (left, right)}, components=(32,))
    flat = np.concatenate([left, np.zeros((30, 8))], axis=1)
    with pytest.raises(InputError, match="'m': the texts span only 12 directions"):
        audit({"m": (flat, flat + 0.0)}, components=(16,))
    with pytest.raises(InputError, match="one seed"):
        audit({"m": (left, right)}, n_seeds=0)


def test_bad_rows_and_repeats() -> None:
    left, right = pairs_with(side=1.0, n=100)
    broken = left.copy()
    broken[3, 2] = np.inf
    with pytest.raises(InputError, match=r"'m \(left side\)': row 3"):
        audit({"m": (broken, right)}, components=(4,))
    with pytest.raises(InputError, match=r"\(100, 12\).*\(99, 12\)"):
        audit({"m": (left, right[:-1])}, components=(4,))
    right[5] = right[6]
    report = audit({"m": (left, right)}, components=(4,), n_seeds=1)
    assert any(w.startswith("1 of 100 right texts") for w in report.warnings)
