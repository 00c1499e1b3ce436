"""FLARE against closed forms and laws, and its audit on members whose order is known."""

from __future__ import annotations

import json

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("zuko")

from uec.audits import flare, flare_words, information, sufficiency  # noqa: E402
from uec.audits.densities import (  # noqa: E402
    CouplingFlow,
    Mixture,
    Rows,
    Training,
    fit,
    log_prob,
    seeded,
)
from uec.errors import InputError  # noqa: E402


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def linear_pair(n=1200, d=4, noise=0.5, seed=0):
    """U, V = U A + noise, and their information ½ log det(I + A'A / noise²) in nats."""
    rng = np.random.default_rng(seed)
    a = rng.standard_normal((d, d))
    u = rng.standard_normal((n, d))
    v = u @ a + noise * rng.standard_normal((n, d))
    return u, v, 0.5 * np.linalg.slogdet(np.eye(d) + a.T @ a / noise**2)[1]


def estimate(u, v, name="flare", n_components=None, seed=0):
    """I(U -> V) in nats as the audit estimates it."""
    split = sufficiency.split_texts(len(u), seed)
    target = sufficiency.prepare_target(
        v, split.train, n_components=n_components, noise=0.05, seed=seed
    )
    source = sufficiency.standardise(u, split.train)
    return float(
        information.ESTIMATORS[name](target, [source], split, seed=seed).information.mean()
    )


def grid(step=0.05, edge=9.0):
    axis = np.arange(-edge, edge, step)
    return torch.tensor(np.stack(np.meshgrid(axis, axis), -1).reshape(-1, 2), dtype=torch.float32)


@pytest.mark.parametrize("family", ["flow", "mixture"])
def test_densities_integrate_to_one_for_every_source(family):
    with seeded(0):
        source = torch.randn(1, 3)
        density = (
            CouplingFlow(2, width=8).conditioned(3)
            if family == "flow"
            else Mixture(2, 3, n_modes=3, width=8)
        )
        for parameter in density.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
    points = grid()
    total = log_prob(density, Rows(points, source.expand(len(points), -1))).exp().sum() * 0.05**2
    assert float(total) == pytest.approx(1.0, abs=0.02)


def test_conditional_flow_is_exactly_the_marginal_one_before_training():
    with seeded(0):
        marginal = CouplingFlow(6)
        data = torch.randn(200, 6) @ torch.randn(6, 6)
        fit(marginal, Rows(data[:150]), Rows(data[150:]), Training(1e-2, max_epochs=5))
        conditional = marginal.conditioned(10)
        source = 100 * torch.randn(200, 10)
    base = log_prob(marginal, Rows(data))
    assert torch.equal(log_prob(conditional, Rows(data, source)), base)
    assert not torch.equal(base, log_prob(CouplingFlow(6), Rows(data)))


def test_fit_keeps_the_best_weights_and_reports_their_epoch():
    with seeded(0):
        data = torch.randn(64, 4)
        flow = CouplingFlow(4, width=16)
        before = log_prob(flow, Rows(data + 50)).mean()
        # Whatever fits the training rows is bad for these, so the start must be kept.
        epoch = fit(flow, Rows(0.01 * data), Rows(data), Training(1e-1, max_epochs=5, patience=2))
    assert epoch == 0
    assert torch.equal(log_prob(flow, Rows(data + 50)).mean(), before)


def test_linear_gaussian_pair_has_the_closed_form_information():
    u, v, truth = linear_pair()
    assert estimate(u, v) == pytest.approx(truth, rel=0.15)
    assert estimate(u, v, "ridge") == pytest.approx(truth, rel=0.08)


def test_independent_embeddings_share_nothing():
    u, v, _ = linear_pair()
    shuffled = np.random.default_rng(1).permutation(u)
    for name in ("flare", "ridge"):
        assert abs(estimate(shuffled, v, name)) < 0.2
    # Held out, a mixture that fits by heart is punished, never rewarded.
    assert estimate(shuffled, v, "emir") < 0.2


def test_affine_maps_of_the_target_change_nothing():
    u, v, _ = linear_pair()
    skewed = v @ np.diag([0.1, 1.0, 3.0, 10.0]) @ np.random.default_rng(3).standard_normal((4, 4))
    plain, mapped = (estimate(u, x, n_components=4) for x in (v, skewed - 7))
    assert mapped == pytest.approx(plain, rel=0.1)


def test_a_function_of_the_source_knows_no_more_than_the_source():
    u, v, _ = linear_pair()
    whole, part = (estimate(x, v) for x in (u, np.tanh(u[:, :2])))
    assert 0.2 < part <= whole + 0.1


def test_flow_finds_what_a_linear_map_cannot():
    rng = np.random.default_rng(0)
    u = rng.standard_normal((1200, 2))
    v = np.abs(u + 0.5) + 0.3 * rng.standard_normal(u.shape)
    assert estimate(u, v) > 2 * estimate(u, v, "ridge")


def test_a_gaussian_counts_the_misfit_of_its_marginal_as_information():
    # Two clusters a dimension: H(V) is 2 log 2 and that of one cluster, far below a Gaussian's.
    rng = np.random.default_rng(0)
    u = 2 * rng.choice([-1.0, 1.0], (2000, 2)) + 0.3 * rng.standard_normal((2000, 2))
    v = u + 0.5 * rng.standard_normal(u.shape)
    truth = 2 * (np.log(2) + 0.5 * np.log(0.34 / 0.25))
    gaussian = 2 * 0.5 * np.log(4.34 / 0.25)
    assert estimate(u, v, "ridge") == pytest.approx(gaussian, rel=0.1)
    assert estimate(u, v) == pytest.approx(truth, rel=0.2)


def test_high_dimensions_do_no_harm_where_the_intrinsic_one_is_low():
    # 4,096 dimensions, 16 of them free: truth is 8 log(1 + 1 / noise²) nats.
    rng = np.random.default_rng(0)
    latent = rng.standard_normal((500, 16))

    def embed(points):
        lifted = points @ rng.standard_normal((16, 4096))
        return lifted + 0.05 * rng.standard_normal(lifted.shape)

    target = embed(latent)
    found = {}
    for noise in (0.1, 0.4, 1.0):
        source = embed(latent + noise * rng.standard_normal(latent.shape))
        truth = 8 * np.log(1 + 1 / noise**2)
        found[noise] = [
            estimate(source, target, name, n_components=16) / truth for name in ("flare", "emir")
        ]
        assert found[noise][0] > found[noise][1] + 0.1
    flow, _mixture = (
        np.array(list(found.values())).T * 8 * np.log(1 + 1 / np.array(list(found)) ** 2)
    )
    assert flow[0] > flow[1] > flow[2] > 0
    # The flow finds most of what is there where there is much; the mixture less than half.
    assert found[0.1][0] > 0.65
    assert found[0.1][1] < 0.5


def test_one_seed_gives_one_answer_and_leaves_torch_alone():
    u, v, _ = linear_pair(n=300)
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    n_threads = torch.get_num_threads()
    first = estimate(u, v)
    assert torch.get_num_threads() == n_threads
    assert torch.equal(torch.rand(1), expected)
    assert first == estimate(u, v)
    assert first != estimate(u, v, seed=1)


def test_emir_cannot_show_more_than_its_scales_allow():
    u = np.random.default_rng(0).standard_normal((1600, 2))
    v = u + 0.01 * np.random.default_rng(1).standard_normal(u.shape)
    assert estimate(u, v, "emir") < 2 * 1.5
    assert estimate(u, v, "ridge") > 2 * 2.5


def members(n=200, seed=0):
    """Three views of one latent text vector, each noisier than the one before."""
    rng = np.random.default_rng(seed)
    latent = rng.standard_normal((n, 6))
    return {
        name: (latent + noise * rng.standard_normal((n, 6))) @ rng.standard_normal((6, d))
        for name, noise, d in (("clear", 0.2, 24), ("dim", 0.8, 12), ("blind", 3.0, 16))
    }


@pytest.fixture(scope="module")
def report():
    steps: list[int] = []
    found = flare.audit(members(), seeds=(0,), n_components=4, progress=steps.append)
    return found, steps


def test_audit_ranks_members_by_what_they_know_of_a_clean_reference():
    given = members(500)
    clean = given["clear"] @ np.random.default_rng(9).standard_normal((24, 8))
    rng = np.random.default_rng(8)
    found = flare.audit(
        given | {"clear": given["clear"] + rng.standard_normal(given["clear"].shape)},
        references={"clean": clean + 0.1 * rng.standard_normal(clean.shape)},
        seeds=(0,),
        n_components=6,
    )
    for measure in ("flare", "ridge"):
        score = {row["member"]: row[measure] for row in found.rows}
        assert score["clear"] > score["dim"] > score["blind"]


def test_audit_leaves_each_member_out_of_its_own_references(report):
    found, _ = report
    for matrices in (found.details["information"], found.details["spread"]):
        for matrix in matrices.values():
            empty = [[value is None for value in row] for row in matrix]
            assert empty == np.eye(3, dtype=bool).tolist()


def test_scores_are_medians_of_the_pairs_in_the_details(report):
    found, _ = report
    pairs = np.array(found.details["information"]["ridge"], dtype=float)
    by_member = np.nanmedian(pairs / 4, axis=0)
    assert [row["ridge_dimension"] for row in found.rows] == pytest.approx(by_member, rel=1e-6)


def test_enough_members_are_ranked_by_what_others_say_of_the_same_reference(report):
    few, _ = report
    assert few.settings["normalisation"] == "dimension"  # two others a reference
    rng = np.random.default_rng(1)
    given = members(120)
    given["dimmer"] = given["dim"] + 4 * rng.standard_normal(given["dim"].shape)
    found = flare.audit(given, seeds=(0,), n_components=4)
    assert found.settings["normalisation"] == "column"
    nats = np.array(found.details["information"]["flare"], dtype=float)
    centred = nats - np.nanmean(nats, axis=1, keepdims=True)
    spread = np.nanstd(nats, axis=1, keepdims=True)
    expected = np.nanmedian(centred / np.where(spread > 0, spread, 1), axis=0)
    assert [row["flare"] for row in found.rows] == pytest.approx(expected)
    best = max(found.rows, key=lambda row: row["flare"])["member"]
    assert found.findings[0].startswith(f"{best} says most about the references' vectors")
    assert isinstance(found.details["order_holds"], bool)


def test_report_is_json_counts_all_texts_and_names_its_limits(report):
    found, steps = report
    json.dumps([found.details, dict(found.settings), found.rows], allow_nan=False)
    assert sum(steps) == 3 * found.n_texts == 3 * 200
    assert len(found.details["learning_curve"]["n_fitted"]) == 3
    assert found.settings["n_components"] == 4 and found.settings["seeds"] == [0]
    assert any("2 other(s) only" in warning for warning in found.warnings)
    assert all(value is not None for value in found.details["entropy"]["flare"])
    assert any("better than a linear Gaussian model on" in said for said in found.findings)
    assert found.findings[0].startswith("Knowing ") and "blind, the least" in found.findings[0]


def test_a_pool_of_references_judges_one_member():
    given = members(120)
    found = flare.audit(
        {"clear": given["clear"]},
        references={name: given[name] for name in ("dim", "blind")},
        seeds=(0,),
        n_components=4,
    )
    assert [row["member"] for row in found.rows] == ["clear"]
    assert found.details["targets"] == ["dim", "blind"]
    assert all(row[0] is not None for row in found.details["information"]["flare"])


def test_repeated_texts_are_left_out_and_few_texts_are_flagged():
    given = {name: np.vstack([x, x[:9]]) for name, x in members(90).items()}
    found = flare.audit(given, seeds=(0,))
    assert found.n_texts == 90
    assert any(w.startswith("9 texts repeat") for w in found.warnings)
    assert any(w.startswith("Only 90 texts") for w in found.warnings)
    # 63 training texts allow 15 components, the narrowest member 12.
    assert found.settings["n_components"] == 12
    assert any("12 components" in w for w in found.warnings)


def broken(change):
    given = members(60)
    change(given)
    return given


@pytest.mark.parametrize(
    ("change", "options", "words"),
    [
        (lambda m: m["dim"].__setitem__((17, 2), np.nan), {}, "'dim'.*row 17"),
        (lambda m: m.update(dim=m["dim"][:-1]), {}, "different numbers of texts"),
        (lambda m: m.update({k: x[:30] for k, x in m.items()}), {}, "30 texts"),
        (lambda m: m.update({k: np.tile(x[:20], (3, 1)) for k, x in m.items()}), {}, "20 texts"),
        (lambda m: m.update(dim=np.ones((60, 4))), {}, "same vector"),
        (lambda m: [m.pop(k) for k in ("dim", "blind")], {}, "no reference"),
        (lambda m: None, {"noise": 0.0}, "noise"),
        (lambda m: None, {"n_components": 1}, "n_components"),
        (lambda m: None, {"seeds": ()}, "seeds"),
    ],
)
def test_unusable_input_is_refused_with_its_name(change, options, words):
    with pytest.raises(InputError, match=words):
        flare.audit(broken(change), **options)


def test_near_identical_members_are_named():
    nats = np.array([[np.nan, 9.0, 1.0], [9.0, np.nan, 1.0], [1.0, 1.0, np.nan]])
    said = flare_words.warnings(
        members=("a", "b", "c"),
        targets=("a", "b", "c"),
        nats=nats,
        n_dims=[4, 4, 4],
        n_texts=1000,
        n_repeated=0,
        components=(4, 4),
    )
    near = [sentence for sentence in said if "near-identical" in sentence]
    assert [sentence.split(":")[0] for sentence in near] == [
        "b all but fixes a",
        "a all but fixes b",
    ]
