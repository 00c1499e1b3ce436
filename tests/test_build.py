"""Building an index: what it writes and refuses, and that a kill at any moment loses nothing."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import uec
from uec.build import CHUNK, CorpusMoments, build_index
from uec.errors import BusyError, CorruptArtefactError, EmbeddingError, InputError, MismatchError
from uec.records import POSTERIOR_KINDS
from uec.retriever import Retriever


def test_rows_hold_what_the_members_say(ensemble, located, retriever):
    texts = [document.passage for _, document in located]
    encodings = ensemble.encode(texts, "document")
    rows = np.arange(len(texts))
    for kind in POSTERIOR_KINDS:
        candidates = retriever.index.candidates(rows, kind)
        for got, encoding in zip(candidates, encodings, strict=True):
            gaussian = encoding.gaussians[kind]
            np.testing.assert_allclose(got.mean, gaussian.mean, atol=1e-6)
            np.testing.assert_allclose(got.trace, gaussian.trace, rtol=1e-5)
            np.testing.assert_allclose(got.moment, gaussian.profile_moment, rtol=1e-5)


def test_documents_come_back_whole(retriever, located):
    documents = retriever.index.documents.get(np.arange(len(located)))
    assert documents == [document for _, document in located]


def test_corpus_moments_equal_numpy_in_any_chunks():
    rows = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    moments = CorpusMoments(4)
    for part in np.split(rows, [7, 20, 21]):
        moments.add(part)
    arrays = moments.arrays()
    np.testing.assert_allclose(arrays["mean"], rows.mean(axis=0), atol=1e-6)
    np.testing.assert_allclose(arrays["covariance"], np.cov(rows.T, bias=True), atol=1e-6)


def test_the_same_corpus_gives_the_same_fingerprint(ensemble, located, index_dir, tmp_path):
    again = build_index(ensemble, located, tmp_path / "again")
    assert again.fingerprint == Retriever.open(index_dir).index.artefact.fingerprint


def test_more_documents_than_a_chunk(ensemble, tmp_path):
    n = CHUNK + 3
    documents = ((f"c:{i}", uec.Document(f"d{i}", f"text number {i}")) for i in range(n))
    counted = []
    build_index(ensemble, documents, tmp_path / "many", progress=counted.append)
    assert counted == [CHUNK, 3]
    retriever = Retriever.open(tmp_path / "many")
    assert len(retriever.index) == n
    assert retriever.search([f"text number {n - 1}"], top_k=1)[0].hits[0].doc_id == f"d{n - 1}"


def test_an_empty_corpus_is_refused_and_leaves_nothing(ensemble, tmp_path):
    with pytest.raises(InputError, match="no documents"):
        build_index(ensemble, [], tmp_path / "empty")
    assert not [p for p in (tmp_path / "empty").iterdir() if p.name.startswith("data-")]


def test_a_duplicate_id_names_both_places(ensemble, tmp_path):
    documents = [
        ("corpus.jsonl:1", uec.Document("x", "one")),
        ("corpus.jsonl:2", uec.Document("y", "two")),
        ("corpus.jsonl:3", uec.Document("x", "three")),
    ]
    with pytest.raises(InputError, match=r"corpus.jsonl:3: duplicate document id 'x'.*jsonl:1"):
        build_index(ensemble, documents, tmp_path / "twice")


@pytest.mark.parametrize("value", [np.nan, np.inf, 0.0])
def test_an_unusable_vector_names_member_and_document(ensemble, tmp_path, value):
    class Broken:
        def __init__(self, encoder):
            self._encoder = encoder

        def __getattr__(self, name):
            return getattr(self._encoder, name)

        def encode(self, texts, role, **kwargs):
            encoding = self._encoder.encode(texts, role, **kwargs)
            for row, text in enumerate(texts):
                if text == "poison":
                    encoding.mean[row] = value
            return encoding

    members = list(ensemble.members)
    members[1] = dataclasses.replace(members[1], encoder=Broken(members[1].encoder))
    broken = dataclasses.replace(ensemble, members=tuple(members))
    documents = [("c:7", uec.Document("good", "fine")), ("c:8", uec.Document("bad", "poison"))]
    with pytest.raises(EmbeddingError, match=r"c:8: document 'bad': member 'b' gave a"):
        build_index(broken, documents, tmp_path / "broken")


def test_a_failed_build_keeps_the_old_index(ensemble, located, tmp_path):
    build_index(ensemble, located[:5], tmp_path / "kept")
    with pytest.raises(InputError):
        build_index(ensemble, [*located[:3], located[0]], tmp_path / "kept")
    assert len(Retriever.open(tmp_path / "kept").index) == 5


def test_a_changed_file_is_found(ensemble, located, tmp_path):
    artefact = build_index(ensemble, located[:5], tmp_path / "index")
    for name in ("vectors.faiss", "sketch.f32", "documents.sqlite", "a.kron.npz"):
        path = artefact.file(name)
        original = path.read_bytes()
        changed = bytearray(original)
        changed[len(changed) // 2] ^= 1
        path.write_bytes(changed)
        with pytest.raises(CorruptArtefactError, match=name):
            Retriever.open(tmp_path / "index")
        path.write_bytes(original)
    Retriever.open(tmp_path / "index")


def test_another_encoder_is_refused_by_field(ensemble, located, tmp_path, monkeypatch):
    build_index(ensemble, located[:5], tmp_path / "index")
    from uec.encoders import hashing

    monkeypatch.setattr(hashing, "DEFAULT_MAX_LENGTH", 100)
    with pytest.raises(MismatchError, match=r"members.a.max_length: got 100, expected 2048"):
        Retriever.open(tmp_path / "index")


def test_an_encoder_that_changed_without_saying_so_is_refused(
    ensemble, located, tmp_path, monkeypatch
):
    build_index(ensemble, located[:5], tmp_path / "index")
    from uec.encoders import hashing

    monkeypatch.setattr(hashing, "NGRAM", 2)
    with pytest.raises(MismatchError, match=r"members.a: its embedding of the query probe text"):
        Retriever.open(tmp_path / "index")


BUILDER = """
import sys
from pathlib import Path
import uec
from uec.build import build_index
ensemble = uec.Ensemble.load(Path(sys.argv[1]), verify=False)
print("ready", flush=True)
size = 40
while True:
    size = 80 - size if size != 40 else 41
    documents = ((f"c:{i}", uec.Document(f"d{i}", f"text {i} of {size}")) for i in range(size))
    build_index(ensemble, documents, Path(sys.argv[2]))
    print(size, flush=True)
"""


def test_a_kill_at_twenty_random_moments_loses_nothing(ensemble, tmp_path):
    """SIGKILL during builds over an index that is there: it opens, whole, every time."""
    ensemble.save(tmp_path / "ensemble")
    index = tmp_path / "index"
    documents = [(f"c:{i}", uec.Document(f"d{i}", f"text {i} of 40")) for i in range(40)]
    build_index(ensemble, documents, index)
    rng = random.Random(0)
    script = tmp_path / "builder.py"
    script.write_text(BUILDER)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    for _ in range(20):
        command = [sys.executable, str(script), str(tmp_path / "ensemble"), str(index)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=env) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            # Builds take tens of milliseconds each, so every stage of one is hit now and then.
            time.sleep(rng.uniform(0.0, 0.15))
            process.send_signal(signal.SIGKILL)
        opened = Retriever.open(index)  # verifies every checksum
        texts = {d.text.split()[-1] for d in opened.index.documents.get(range(len(opened.index)))}
        assert texts == {str(len(opened.index))}
        opened.index.artefact.close()
    build_index(ensemble, documents, index)
    assert len([p for p in index.iterdir() if p.name.startswith("data-")]) == 1


def test_two_builds_at_once(ensemble, located, tmp_path):
    def documents():
        yield located[0]
        with pytest.raises(BusyError, match="being written"):
            build_index(ensemble, located[:2], tmp_path / "index")
        yield located[1]

    build_index(ensemble, documents(), tmp_path / "index")
    assert len(Retriever.open(tmp_path / "index").index) == 2


def test_the_manifest_names_no_place_of_this_machine(index_dir):
    manifest = json.loads((index_dir / "manifest.json").read_text())
    assert str(Path.home()) not in json.dumps(manifest)
    assert "/tmp" not in json.dumps(manifest)
