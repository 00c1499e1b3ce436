"""Geometry: each measure by hand and by identity, collapse on purpose, the audit."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import ortho_group

from uec.audits import maps, spectrum, sphere
from uec.audits.geometry import audit
from uec.errors import InputError


def gaussian(n: int, d: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, d))


def isoscore_as_published(matrix: np.ndarray) -> float:
    """Algorithm 1 of the IsoScore paper, step by step."""
    d = matrix.shape[1]
    variances = np.linalg.eigvalsh(np.cov(matrix.T))
    scaled = np.sqrt(d) * variances / np.linalg.norm(variances)
    defect = np.linalg.norm(scaled - 1) / np.sqrt(2 * (d - np.sqrt(d)))
    phi = (d - defect**2 * (d - np.sqrt(d))) ** 2 / d**2
    return float((d * phi - 1) / (d - 1))


# directions


def test_alignment_by_hand() -> None:
    # Unit vectors at 0 and 90 degrees: squared gap 2; equal ones: 0; opposite ones: 4.
    left = np.array([[1.0, 0.0], [2.0, 0.0], [1.0, 0.0]])
    right = np.array([[0.0, 3.0], [5.0, 0.0], [-1.0, 0.0]])
    assert sphere.alignment(left, right) == pytest.approx((2 + 0 + 4) / 3)
    assert sphere.alignment(left, right, alpha=1.0) == pytest.approx((np.sqrt(2) + 0 + 2) / 3)


def test_uniformity_and_mean_cosine_by_hand() -> None:
    # Three directions 0, 90, 180 degrees: squared gaps 2, 2, 4 and cosines 0, 0, -1.
    matrix = np.array([[1.0, 0.0], [0.0, 2.0], [-3.0, 0.0]])
    expected = np.log((2 * np.exp(-4) + np.exp(-8)) / 3)
    assert sphere.uniformity(matrix) == pytest.approx(expected)
    assert sphere.mean_cosine(matrix) == pytest.approx(-1 / 3)
    assert sphere.uniformity(np.ones((5, 3))) == pytest.approx(0)
    assert sphere.mean_cosine(np.ones((5, 3))) == pytest.approx(1)


@pytest.mark.parametrize("d", [64, 384])
def test_uniformity_of_the_sphere(d: int) -> None:
    assert sphere.uniformity(gaussian(1500, d)) == pytest.approx(-4 + 8 / d, abs=2e-3)


def test_near_duplicates_by_hand() -> None:
    # Two pairs out of 4 * 3 / 2 within 8 degrees (cosine 0.9903), none of the others.
    radians = np.radians([0.0, 8.0, 60.0, 68.0])
    matrix = np.stack([np.cos(radians), np.sin(radians)], axis=1)
    assert sphere.near_duplicates(matrix) == pytest.approx(2 / 6)
    assert sphere.near_duplicates(matrix, threshold=0.9904) == 0


def test_pairs_are_all_counted_across_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = gaussian(50, 4)
    unit = matrix / np.linalg.norm(matrix, axis=1, keepdims=True)
    squared = ((unit[:, None] - unit) ** 2).sum(axis=2)[np.triu_indices(50, 1)]
    for block in (1, 7, 49, 50, 512):
        monkeypatch.setattr(sphere, "_BLOCK", block)
        assert sphere.uniformity(matrix) == pytest.approx(np.log(np.exp(-2 * squared).mean()))


def test_mean_cosine_is_the_squared_length_of_the_mean_up_to_one_over_n() -> None:
    unit = gaussian(400, 20) + 0.7
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    assert sphere.mean_cosine(unit) == pytest.approx(np.sum(unit.mean(axis=0) ** 2), abs=1 / 400)
    off_diagonal = (unit @ unit.T)[~np.eye(400, dtype=bool)]
    assert sphere.mean_cosine(unit) == pytest.approx(off_diagonal.mean())


def test_hubness_by_hand_and_of_a_hub() -> None:
    # On a regular 12-gon everybody is neighbour of the two beside: no skewness at all.
    radians = 2 * np.pi * np.arange(12) / 12
    ring = np.stack([np.cos(radians), np.sin(radians)], axis=1)
    assert sphere.hubness(ring, k=2) == 0
    # The mean direction of a cloud in many dimensions is nearest to everybody.
    cloud = gaussian(200, 60)
    hub = np.concatenate([cloud + 1.0, np.ones((1, 60))])
    assert sphere.hubness(hub, k=3) > 2 * sphere.hubness(cloud + 1.0, k=3)


# spectrum


def test_spectrum_by_hand() -> None:
    # Points +-2 and +-1 on two axes of three: variances 8/4 = 2, 2/4 = 1/2, 0.
    matrix = np.array([[2.0, 0, 0], [-2, 0, 0], [0, 1, 0], [0, -1, 0]])
    values = spectrum.covariance_eigenvalues(matrix)
    np.testing.assert_allclose(values, [2, 0.5, 0], atol=1e-15)
    assert spectrum.participation_ratio(values) == pytest.approx(2.5**2 / (4 + 0.25))
    assert spectrum.top_share(values) == pytest.approx(0.8)
    assert [spectrum.directions_for(values, share) for share in (0.5, 0.8, 0.81, 1.0)] == [
        1,
        1,
        2,
        2,
    ]
    # The mean is zero, so singular values are sqrt(n l) = sqrt 8 and sqrt 2; p = 2/3, 1/3.
    singular = spectrum.singular_values(matrix)
    np.testing.assert_allclose(singular, [np.sqrt(8), np.sqrt(2), 0], atol=1e-7)
    assert spectrum.stable_rank(singular) == pytest.approx(10 / 8)
    entropy = -(2 / 3 * np.log(2 / 3) + 1 / 3 * np.log(1 / 3))
    assert spectrum.effective_rank(singular) == pytest.approx(np.exp(entropy), rel=1e-5)


def test_equal_eigenvalues_use_every_direction() -> None:
    values = np.full(30, 0.2)
    assert spectrum.participation_ratio(values) == pytest.approx(30)
    assert spectrum.isoscore(values, 30) == pytest.approx(1)
    assert spectrum.effective_rank(values) == pytest.approx(30, rel=1e-4)
    assert spectrum.stable_rank(values) == pytest.approx(30)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000), d=st.integers(2, 30), n=st.integers(3, 60))
def test_isoscore_is_the_participation_ratio_in_another_scale(seed: int, d: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    matrix = rng.standard_normal((n, d)) * rng.uniform(0.1, 3, d)
    values = spectrum.covariance_eigenvalues(matrix)
    assert spectrum.isoscore(values, d) == pytest.approx(isoscore_as_published(matrix), abs=1e-7)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1000), scale=st.floats(0.01, 100))
def test_measures_are_blind_to_rotation_order_and_scale(seed: int, scale: float) -> None:
    matrix = gaussian(60, 8, seed) + 0.5
    rotation = ortho_group.rvs(8, random_state=seed)
    other = scale * matrix[np.random.default_rng(seed).permutation(60)] @ rotation
    measures: list[Callable[[np.ndarray], float]] = [
        sphere.uniformity,
        sphere.mean_cosine,
        sphere.near_duplicates,
        lambda m: sphere.hubness(m, k=5),
        lambda m: spectrum.participation_ratio(spectrum.covariance_eigenvalues(m)),
        lambda m: spectrum.top_share(spectrum.covariance_eigenvalues(m)),
        lambda m: spectrum.effective_rank(spectrum.singular_values(m)),
        lambda m: spectrum.stable_rank(spectrum.singular_values(m)),
    ]
    for measure in measures:
        assert measure(other) == pytest.approx(measure(matrix), rel=1e-6, abs=1e-9)


def test_few_texts_bound_the_participation_ratio() -> None:
    # 16 of 100 directions can show in 17 texts.
    values = spectrum.covariance_eigenvalues(gaussian(17, 100))
    assert 8 < spectrum.participation_ratio(values) < 16
    assert spectrum.directions_for(values, 1.0) == 16


def test_wide_and_tall_matrices_have_one_spectrum() -> None:
    matrix = gaussian(20, 33)
    expected = np.linalg.svd(matrix - matrix.mean(axis=0), compute_uv=False) ** 2 / 20
    np.testing.assert_allclose(
        spectrum.covariance_eigenvalues(matrix)[:19], expected[:19], rtol=1e-10
    )
    np.testing.assert_allclose(
        spectrum.singular_values(matrix.T), np.linalg.svd(matrix, compute_uv=False), rtol=1e-10
    )


def test_whitening_gives_the_identity() -> None:
    matrix = gaussian(300, 6) @ gaussian(6, 10, 1) + 3
    white = (matrix - matrix.mean(axis=0)) @ sphere.whitening(matrix)
    assert white.shape == (300, 6)
    np.testing.assert_allclose(white.T @ white / 300, np.eye(6), atol=1e-10)


# codes, clusters


def test_distinct_codes_by_hand() -> None:
    # Two steps over 0..1: 0, 0.1 | 0.6, 1: codes 0 0 1 1, two of four rows stay distinct. Four
    # steps: 0 0 2 3. Rows that were equal before do not count.
    matrix = np.array([[0.0], [0.1], [0.6], [1.0], [1.0]])
    assert sphere.distinct_codes(matrix, bits=1) == pytest.approx(2 / 4)
    assert sphere.distinct_codes(matrix, bits=2) == pytest.approx(3 / 4)
    assert sphere.distinct_codes(matrix, bits=8) == 1
    assert sphere.levels(np.array([[0.0, 5.0, 1], [0.0, 6.0, 2], [1.0, 7.0, 3]])) == 3


def test_purity_by_hand() -> None:
    # Cluster 0 holds a a b, cluster 1 holds b: 2 + 1 of 4.
    assert maps.purity(np.array([0, 0, 0, 1]), np.array([0, 0, 1, 1])) == pytest.approx(3 / 4)


def test_silhouette_by_hand() -> None:
    # In 1 - cosine: two texts at 0 degrees and two at 90. Own group 0, other 1: silhouette 1.
    unit = np.array([[1.0, 0], [1, 0], [0, 1], [0, 1]])
    assert maps.silhouette(unit, np.array([0, 0, 1, 1]), 0) == pytest.approx(1)
    # Groups across: own 1, other 1/2: (1/2 - 1) / 1.
    assert maps.silhouette(unit, np.array([0, 1, 0, 1]), 0) == pytest.approx(-0.5)
    assert maps.silhouette(unit, np.zeros(4, dtype=int), 0) is None


# the audit


def sound(n: int = 300, d: int = 24, seed: int = 0) -> np.ndarray:
    return gaussian(n, d, seed).astype(np.float32)


def token_collapsed() -> np.ndarray:
    matrix = sound()
    matrix[:60] = matrix[0] + 0.01 * matrix[:60]
    return matrix


def dimension_collapsed() -> np.ndarray:
    return sound() * np.array([10.0] + [0.5] * 23, dtype=np.float32)


def quantised() -> np.ndarray:
    return np.sign(sound())


@pytest.mark.parametrize(
    ("matrix", "kinds"),
    [
        (sound(), []),
        (sound() + 2, []),
        (token_collapsed(), ["token"]),
        (np.repeat(sound(150), 2, axis=0), ["token"]),
        (dimension_collapsed(), ["dimensional"]),
        (quantised(), ["quantisation"]),
        (np.tile(sound(1), (300, 1)), ["token", "dimensional", "quantisation"]),
    ],
)
def test_collapse_is_diagnosed(matrix: np.ndarray, kinds: list[str]) -> None:
    # A sound member beside it, so that equal vectors are known for the member's own doing.
    report = audit({"sound": sound(seed=1), "m": matrix}, map_texts=50)
    assert [found["kind"] for found in report.details["diagnosis"]["m"]] == kinds
    assert report.details["diagnosis"]["sound"] == []
    said = [line for line in report.findings if line.startswith("m: ")]
    for kind in kinds:
        assert any(f"{kind} collapse" in line and "What to do" in line for line in said)
    if not kinds:
        assert said[0].startswith("m: no collapse")
    json.dumps(report.details, allow_nan=False)


def test_audit_figures_are_the_measures() -> None:
    matrix = sound() + 1
    done: list[int] = []
    report = audit({"m": matrix}, progress=done.append, map_texts=0)
    row = report.rows[0]
    values = spectrum.covariance_eigenvalues(matrix)
    assert sum(done) == 300
    assert row["uniformity"] == pytest.approx(sphere.uniformity(matrix))
    assert row["mean_cosine"] == pytest.approx(sphere.mean_cosine(matrix))
    assert row["hubness"] == pytest.approx(sphere.hubness(matrix))
    assert row["participation_ratio"] == pytest.approx(spectrum.participation_ratio(values))
    assert row["isoscore"] == pytest.approx((row["participation_ratio"] - 1) / 23)
    assert row["directions_99"] == spectrum.directions_for(values, 0.99)
    assert report.rank_by is None
    assert report.details["maps"] == {}


def test_views_take_off_the_mean_and_whiten() -> None:
    skewed = sound(400) * np.linspace(0.2, 2, 24, dtype=np.float32) + 2
    report = audit({"m": skewed}, map_texts=0)
    views = report.details["views"]["m"]
    assert views["before"]["mean_cosine"] > 0.7
    assert views["centred"]["mean_cosine"] == pytest.approx(0, abs=0.01)
    centred = skewed - skewed.mean(axis=0)
    assert views["centred"]["uniformity"] == pytest.approx(sphere.uniformity(centred), abs=1e-5)
    # Whitened, the cloud is as uniform as a sphere of 24 dimensions: about -4 + 8 / 24.
    assert views["whitened"]["uniformity"] == pytest.approx(-4 + 8 / 24, abs=0.05)
    assert any("share one direction" in line for line in report.findings)


def test_hubs_and_their_cure_are_named() -> None:
    matrix = gaussian(400, 40) + 1.0
    matrix[0] = 1.0
    line = next(f for f in audit({"m": matrix}, map_texts=0).findings if "hubness" in f)
    assert "taking off the mean brings it to" in line


def test_adversarial_pairs_show_who_reads_words_only() -> None:
    rng = np.random.default_rng(0)
    meaning, words = rng.standard_normal((2, 200, 12))
    other = rng.standard_normal((200, 12))

    def member(reads: float) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
        """Embeds what is said, weighted by `reads`, beside the words."""
        base = np.concatenate([reads * meaning, words], axis=1)
        paraphrase = np.concatenate([reads * meaning, 0.8 * words + 0.6 * other], axis=1)
        adversarial = np.concatenate([reads * other, words], axis=1)
        return (base, paraphrase), (base, adversarial)

    pairs = {name: member(reads) for name, reads in (("reader", 3.0), ("words", 0.1))}
    report = audit(
        {"reader": gaussian(200, 24), "words": gaussian(200, 24, 1)},
        pairs={name: both[0] for name, both in pairs.items()},
        adversarial={name: both[1] for name, both in pairs.items()},
        map_texts=0,
    )
    reader, words_only = report.rows
    assert reader["alignment"] == pytest.approx(sphere.alignment(*pairs["reader"][0]))
    assert reader["alignment_gap"] > 1
    assert words_only["alignment_gap"] < 0
    assert any(f.startswith("words:") and "goes by the words" in f for f in report.findings)
    assert any(f.startswith("reader:") and "tells them apart" in f for f in report.findings)
    assert report.settings["n_pairs"] == {"alignment": 200, "alignment_adversarial": 200}


def test_labels_give_purity_and_colours() -> None:
    centres = 4 * np.eye(3, 10)
    labels = [("law", "sport", "art")[i % 3] for i in range(120)]
    matrix = centres[np.arange(120) % 3] + 0.3 * gaussian(120, 10)
    report = audit({"m": matrix}, labels=labels, map_texts=60)
    assert report.rows[0]["purity"] == 1
    assert report.rows[0]["label_silhouette"] == pytest.approx(report.rows[0]["silhouette"])
    assert report.rows[0]["label_silhouette"] > 0.8
    details = report.details
    assert details["map_labels"] == [labels[i] for i in details["map_rows"]]
    for kind in ("pca", "tsne"):
        points = np.array(details["maps"]["m"][kind])
        assert maps.purity(maps.clusters(points, 3, 0), np.arange(60) % 3) == 1


def test_sampling_is_said_and_the_same_for_all_members() -> None:
    report = audit({"a": sound(), "b": sound()}, max_texts=100, map_texts=0)
    a, b = ({k: v for k, v in row.items() if k != "member"} for row in report.rows)
    assert a == b
    assert any("sample of 100 of 300 texts" in w for w in report.warnings)


def test_thirty_texts_and_repeats_are_flagged() -> None:
    matrix = sound(30, 64)
    matrix[4] = matrix[2]
    report = audit({"a": matrix, "b": 2 * matrix, "c": sound(30, 3)}, map_texts=0)
    text = " ".join(report.warnings)
    assert "fewer than 5 a dimension for a (64), b (64)" in text
    assert "cannot exceed 29" in text
    assert report.details["views"]["a"]["whitened"] is None
    assert report.details["views"]["c"]["whitened"] is not None
    both = audit({"a": matrix, "b": 2 * matrix}, map_texts=0)
    assert any(w.startswith("1 of 30 texts") for w in both.warnings)


def test_bad_input_is_named() -> None:
    good = sound()
    broken = good.copy()
    broken[12, 3] = np.nan
    cases: list[tuple[Callable[[], object], str]] = [
        (lambda: audit({"a": good, "b": broken}), "'b': row 12"),
        (lambda: audit({"a": good[:19]}), "19 texts are too few"),
        (lambda: audit({"a": good, "b": good[:200]}), "different numbers of texts"),
        (lambda: audit({"a": good}, labels=["x"] * 299), "299 labels for 300 texts"),
        (lambda: audit({"a": good}, labels=["x"] * 300), "1 different labels"),
        (lambda: audit({"a": good}, pairs={"b": (good, good)}), r"\['b'\].*\['a'\]"),
        (lambda: audit({"a": good}, pairs={"a": (good, good[:9])}), r"\(300, 24\).*\(9, 24\)"),
        (lambda: audit({"a": good}, pairs={"a": (good[:, :5], good[:, :5])}), "5 dimensions"),
    ]
    for call, message in cases:
        with pytest.raises(InputError, match=message):
            call()
