"""The parts of the FLARE audit that need no flow: the Gaussian plug-in, scores and dimensions."""

from __future__ import annotations

import numpy as np
import pytest

from uec.audits import sufficiency
from uec.audits.sufficiency import split_texts, standardise


def gaussian_pair(rng, n=3000, d=8, noise=0.5):
    """U, V = U A + noise, and their information ½ log det(I + A'A / noise²) in nats."""
    a = rng.standard_normal((d, d)) / np.sqrt(d)
    u = rng.standard_normal((n, d))
    v = u @ a + noise * rng.standard_normal((n, d))
    return u, v, 0.5 * np.linalg.slogdet(np.eye(d) + a.T @ a / noise**2)[1]


def test_split_is_a_partition_and_shrinks_all_but_the_test_texts():
    split = split_texts(1000, seed=3)
    assert [len(split.train), len(split.validation), len(split.test)] == [700, 150, 150]
    assert sorted(np.concatenate([split.fitted, split.test])) == list(range(1000))
    half = split.shrunk(0.5)
    assert np.array_equal(half.test, split.test)
    assert np.array_equal(half.train, split.train[:350]) and len(half.validation) == 75
    assert not np.array_equal(split.test, split_texts(1000, seed=4).test)


def test_standardise_uses_training_rows_only_and_silences_flat_dimensions():
    x = np.array([[0.0, 5.0], [2.0, 5.0], [100.0, 7.0]])
    assert standardise(x, np.array([0, 1])).tolist() == [[-1, 0], [1, 0], [99, 0]]


def test_target_components_are_white_and_noise_is_added_on_top():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((4000, 6)) @ rng.standard_normal((6, 6))
    train = np.arange(4000)
    target = sufficiency.prepare_target(x, train, n_components=3, noise=0.5, seed=1)
    assert np.cov(target.T) == pytest.approx(1.25 * np.eye(3), abs=0.08)


def test_repeated_rows_are_found_up_to_rounding_and_only_if_every_member_repeats_them():
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((300, 16)), rng.standard_normal((300, 4))
    a[[7, 250]], b[[7, 250]] = a[3] * (1 + 1e-7), b[3] * (1 + 1e-7)
    a[100] = a[99]
    found = sufficiency.repeated_rows({"a": a, "b": b})
    assert np.flatnonzero(found).tolist() == [7, 250]


def test_ridge_residuals_are_those_of_refitting_without_each_row():
    rng = np.random.default_rng(1)
    source, target = rng.standard_normal((30, 40)), rng.standard_normal((30, 2))
    target += source[:, :2]
    fitted = sufficiency.ridge(source, target, np.arange(30))
    # The penalty that the fit chose is not reported, so look for the one that explains row 0.
    centred, outputs = source - source.mean(axis=0), target - target.mean(axis=0)
    scale = np.mean(np.linalg.svd(centred, compute_uv=False) ** 2)
    gaps = []
    for penalty in sufficiency.RIDGE_PENALTIES:
        ones = np.hstack([centred[1:], np.ones((29, 1))])
        cost = np.diag([penalty * scale] * 40 + [0.0])
        weights = np.linalg.solve(ones.T @ ones + cost, ones.T @ outputs[1:])
        left_out = outputs[0] - np.append(centred[0], 1.0) @ weights
        gaps.append(np.abs(left_out - fitted.residual[0]).max())
    assert min(gaps) < 1e-8


@pytest.mark.parametrize("noise", [0.1, 0.5, 2.0])
def test_ridge_gaussian_equals_the_closed_form_on_gaussian_pairs(noise):
    u, v, truth = gaussian_pair(np.random.default_rng(0), n=6000, noise=noise)
    estimate = sufficiency.ridge_gaussian([u], v, split_texts(6000, 0)).information.mean()
    assert estimate == pytest.approx(truth, abs=0.12 + 0.02 * truth)


def test_ridge_gaussian_is_not_fooled_by_more_dimensions_than_texts():
    rng = np.random.default_rng(0)
    u, v = rng.standard_normal((500, 600)), rng.standard_normal((500, 20))
    assert abs(sufficiency.ridge_gaussian([u], v, split_texts(500, 0)).information.mean()) < 0.6


def test_reduced_source_keeps_what_a_linear_map_says_about_the_target():
    u, v, truth = gaussian_pair(np.random.default_rng(0), n=3000, d=8)
    wide = u @ np.random.default_rng(1).standard_normal((8, 200))
    wide += 3 * np.random.default_rng(2).standard_normal(wide.shape)
    split = split_texts(3000, 0)
    reduced = sufficiency.reduce_source(wide, v, split.train, rank=16)
    assert reduced.shape == (3000, 16)
    full = sufficiency.ridge_gaussian([wide], v, split).information.mean()
    assert sufficiency.ridge_gaussian([reduced], v, split).information.mean() == pytest.approx(
        full, abs=0.15
    )
    assert full < truth


def test_scores_by_hand_in_both_readings():
    nan = np.nan
    information = np.array([[nan, 8.0, 4.0], [3.0, nan, 9.0], [2.0, 6.0, nan]])
    by_dimension = sufficiency.scores(information, [4, 3, 2], "dimension")
    assert by_dimension.tolist() == [1.0, 2.5, 2.0]
    # Two sources a target leave +1 for the better and -1 for the other.
    assert sufficiency.scores(information, [4, 3, 2], "column").tolist() == [-1.0, 1.0, 0.0]


def test_column_reading_forgives_a_hard_target():
    easy_for_all, hard_for_all = [5.0, 6.0, 7.0], [0.1, 0.2, 0.3]
    scored = sufficiency.scores(np.array([easy_for_all, hard_for_all]), [1, 1], "column")
    assert scored == pytest.approx([-np.sqrt(1.5), 0.0, np.sqrt(1.5)])


@pytest.mark.parametrize("intrinsic", [2, 8])
def test_intrinsic_dimension_of_a_flat_sheet_in_many_dimensions(intrinsic):
    rng = np.random.default_rng(0)
    points = rng.standard_normal((3000, intrinsic)) @ rng.standard_normal((intrinsic, 100))
    radii = sufficiency.neighbour_radii(points)
    assert sufficiency.two_nn(radii) == pytest.approx(intrinsic, rel=0.15)
    assert sufficiency.levina_bickel(radii) == pytest.approx(intrinsic, rel=0.15)


def test_intrinsic_dimension_ignores_scale_and_repeats():
    rng = np.random.default_rng(0)
    points = rng.standard_normal((800, 5))
    alone = sufficiency.two_nn(sufficiency.neighbour_radii(points))
    repeated = np.vstack([1e-3 * points, 1e-3 * points[:1]])
    assert sufficiency.two_nn(sufficiency.neighbour_radii(repeated)) == pytest.approx(
        alone, rel=0.01
    )
