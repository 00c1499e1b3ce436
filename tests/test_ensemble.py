"""Ensembles: what a fit makes, what a folder keeps, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import uec
from uec.calibration import ROLES, Calibration, TraceScale
from uec.ensemble import Ensemble, check_specs, encode_member
from uec.errors import EmbeddingError, InputError, MismatchError, NotFoundError
from uec.fitting import HELD_OUT_SHARE, fingerprint, fit_ensemble
from uec.laplace import FitSettings
from uec.records import POSTERIOR_KINDS, MemberSpec, Pair


def test_save_and_load_change_nothing(ensemble, texts, tmp_path):
    ensemble.save(tmp_path / "e")
    loaded = Ensemble.load(tmp_path / "e")
    assert loaded.names == ensemble.names
    before, after = (e.encode(texts[:5], "query") for e in (ensemble, loaded))
    for one, two in zip(before, after, strict=True):
        np.testing.assert_array_equal(one.mean, two.mean)
        for kind in POSTERIOR_KINDS:
            np.testing.assert_array_equal(one.gaussians[kind].trace, two.gaussians[kind].trace)
            np.testing.assert_array_equal(one.calibrated[kind], two.calibrated[kind])
    np.testing.assert_array_equal(loaded.calibration.log_prior, ensemble.calibration.log_prior)


def test_traces_have_median_one_on_the_held_out_texts(ensemble, texts):
    pairs = [Pair(" ".join(text.split()[:4]), text) for text in texts]
    order = np.random.default_rng(0).permutation(len(pairs))
    held_out = [pairs[i] for i in order[: round(HELD_OUT_SHARE * len(pairs))]]
    for role in ROLES:
        side = [p.query if role == "query" else p.passage for p in held_out]
        for member in ensemble.encode(side, role):
            for kind in POSTERIOR_KINDS:
                assert np.median(member.calibrated[kind]) == pytest.approx(1, rel=1e-5)


def test_a_text_unlike_the_fit_has_a_larger_trace(ensemble):
    known, strange = ensemble.encode(["river mountain database", "qqq jjj ŵŵŵ 99"], "query"), None
    for member in known:
        strange = member.calibrated["kron"]
        assert strange[1] > 1.5 * strange[0]


def test_the_fit_is_deterministic(texts):
    pairs = [Pair(text[:20], text) for text in texts[:40]]
    spec = MemberSpec("a", "hashing:16")
    one, two = (fit_ensemble([spec], {"a": pairs}, FitSettings(), seed=3) for _ in range(2))
    for kind in POSTERIOR_KINDS:
        arrays = one.members[0].posteriors[kind].arrays()
        for name, array in two.members[0].posteriors[kind].arrays().items():
            np.testing.assert_array_equal(array, arrays[name])


def test_progress_counts_every_text_twice_over(texts):
    pairs = [Pair(text[:20], text) for text in texts[:40]]
    counted: list[int] = []
    specs = [MemberSpec("a", "hashing:16"), MemberSpec("b", "hashing:8")]
    fit_ensemble(specs, {"a": pairs, "b": pairs}, FitSettings(), progress=counted.append)
    assert sum(counted) == 2 * 2 * 40


@pytest.mark.parametrize(
    ("specs", "message"),
    [
        ([], "at least one member"),
        ([MemberSpec("a b", "hashing:8")], "member name 'a b'"),
        ([MemberSpec("../x", "hashing:8")], "member name"),
        ([MemberSpec("a", "hashing:8"), MemberSpec("a", "hashing:9")], "must be unique"),
    ],
)
def test_unusable_members(specs, message):
    with pytest.raises(InputError, match=message):
        check_specs(specs)


def test_too_few_pairs():
    with pytest.raises(InputError, match=r"member 'a' has 3 pairs; expected at least 20"):
        fit_ensemble([MemberSpec("a", "hashing:8")], {"a": [Pair("x", "y")] * 3}, FitSettings())


def test_pairs_of_one_text_say_nothing():
    """Identical texts have no spread under the likelihood, but a trace; never a NaN."""
    pairs = [Pair("same", "same")] * 40
    ensemble = fit_ensemble([MemberSpec("a", "hashing:8")], {"a": pairs}, FitSettings())
    trace = ensemble.encode(["same", "other"], "query")[0].calibrated["kron"]
    assert np.isfinite(trace).all()
    assert trace[1] > trace[0]


def test_a_median_of_zero_is_refused():
    traces = {kind: {role: np.zeros(3) for role in ROLES} for kind in POSTERIOR_KINDS}
    with pytest.raises(InputError, match="median diag trace of the held-out query texts is 0"):
        TraceScale.measure(traces)


def test_calibration_survives_json():
    import json

    given = Calibration(np.array([-0.5, -np.inf]), temperature=float("inf"), beta=0.3)
    text = json.dumps(given.to_json(), allow_nan=False)
    back = Calibration.from_json(json.loads(text))
    np.testing.assert_array_equal(back.log_prior, given.log_prior)
    assert (back.temperature, back.beta) == (given.temperature, given.beta)


def test_an_ensemble_is_no_index(ensemble, tmp_path):
    ensemble.save(tmp_path / "e")
    with pytest.raises(MismatchError, match="kind"):
        uec.Retriever.open(tmp_path / "e")
    with pytest.raises(NotFoundError, match="uec fit"):
        Ensemble.load(tmp_path / "nothing")


def test_fingerprints_tell_pairs_apart():
    one = [Pair("ab", "c")]
    assert fingerprint(one) == fingerprint([Pair("ab", "c")])
    # The same letters cut elsewhere.
    assert fingerprint(one) != fingerprint([Pair("a", "bc")])


def test_equal_texts_are_encoded_once_and_have_equal_vectors(ensemble):
    calls, done = [], []

    class Counting:
        def __getattr__(self, name):
            return getattr(inner, name)

        def encode(self, texts, role, **options):
            calls.append(list(texts))
            return inner.encode(texts, role, **options)

    member = ensemble.members[0]
    inner = member.encoder
    texts = ["a b", "c d", "a b", "e f", "a b"]
    found = encode_member(
        replace(member, encoder=Counting()), texts, "document", progress=done.append
    )
    assert calls == [["a b", "c d", "e f"]] and sum(done) == 5
    assert (found.mean[[0, 0]] == found.mean[[2, 4]]).all()
    plain = encode_member(member, texts[:2], "document")
    np.testing.assert_allclose(found.mean[:2], plain.mean, atol=1e-6)


def test_a_bad_text_among_equal_ones_is_named_by_its_own_row(ensemble):
    member = ensemble.members[0]

    class Failing:
        def __getattr__(self, name):
            return getattr(member.encoder, name)

        def encode(self, texts, role, **options):
            raise EmbeddingError(f"no vector for text {texts.index('bad')}", texts.index("bad"))

    with pytest.raises(EmbeddingError, match="text 3") as caught:
        encode_member(replace(member, encoder=Failing()), ["a", "b", "a", "bad"], "query")
    assert caught.value.row == 3
