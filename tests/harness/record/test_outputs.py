"""Pictures and meshes: refused contents, and files that load as they were written."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from stridebench.harness.errors import ContractError, StoreError
from stridebench.harness.record.outputs import (
    Mesh,
    Picture,
    as_mesh,
    as_picture,
    as_text,
    file_name,
    load,
    origins,
    pieces,
    save,
)

TRIANGLE = Mesh(np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0.25]]), np.array([[0, 1, 2]]))


def test_a_picture_is_restored_pixel_for_pixel(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    path = save(Picture(pixels), tmp_path / "deep" / "p.1")
    assert path is not None and path.name == "p.1.png"
    assert (as_picture(load(path)).pixels == pixels).all()


def test_a_mesh_is_restored_vertex_for_vertex(tmp_path):
    path = save(TRIANGLE, tmp_path / "m")
    assert path is not None
    mesh = as_mesh(load(path))
    np.testing.assert_allclose(mesh.vertices, TRIANGLE.vertices)
    assert mesh.faces.tolist() == [[0, 1, 2]]


def test_a_text_is_kept_in_its_sample(tmp_path):
    assert save("words", tmp_path / "t") is None and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "pixels", [np.zeros((2, 2, 3)), np.zeros((2, 2), np.uint8), np.zeros((2, 2, 4), np.uint8)], ids=str
)
def test_a_picture_of_another_type_or_shape_is_refused(pixels):
    with pytest.raises(ContractError, match="uint8"):
        Picture(pixels)


@pytest.mark.parametrize("faces", [np.zeros((0, 3), int), np.array([[0, 1, 3]]), np.array([[-1, 1, 2]])], ids=str)
def test_a_mesh_without_a_face_or_with_a_wrong_index_is_refused(faces):
    with pytest.raises(ContractError):
        Mesh(TRIANGLE.vertices, faces)


def test_a_damaged_file_is_named(tmp_path):
    (tmp_path / "a.png").write_bytes(b"\x89PNG no")
    (tmp_path / "b.ply").write_text("ply\nelement vertex 3\nelement face 1\nend_header\n0 0 0\n")
    (tmp_path / "d.ply").write_text("ply\nelement vertex\nend_header\n")
    (tmp_path / "e.ply").write_text("")
    for name in ("a.png", "b.ply", "c.ply", "d.ply", "e.ply"):
        with pytest.raises(StoreError, match=name):
            load(tmp_path / name)


def test_file_names_are_unique_to_prompt_and_repetition():
    names = [file_name(p, r) for p in ("a/b", "a_b", "a b", "A/b" * 80) for r in (0, 1)]
    assert len(set(names)) == 8 and all("/" not in name and len(name) < 80 for name in names)


def test_an_output_of_another_modality_is_a_contract_error():
    for narrow, other in ((as_text, TRIANGLE), (as_picture, "text"), (as_mesh, "text")):
        with pytest.raises(ContractError, match="the task scores"):
            narrow(other)


def step(drafted: int, tested: int, accepted: int, emitted: int, forced: int = 0, rows: int = 1) -> Any:
    counts = {"drafted": drafted, "tested": tested, "accepted": accepted, "emitted": emitted, "forced": forced}
    return SimpleNamespace(**counts, rows=rows)


def test_the_last_token_of_a_step_corrects_closes_or_stands_alone() -> None:
    steps = [step(3, 2, 1, 2), step(2, 2, 2, 3), step(0, 0, 0, 1), step(2, 1, 0, 1, forced=1), step(1, 1, 1, 1)]
    expected = ["accepted", "corrected", "accepted", "accepted", "bonus", "decoded", "forced", "accepted"]
    assert origins(steps, 8) == expected
    assert origins(steps, 4) == expected[:4], "tokens past the budget are cut off"


def test_a_canvas_has_no_origin_by_position() -> None:
    assert origins([step(0, 0, 0, 4)], 4) is None
    assert origins([step(0, 0, 0, 1, rows=5)] * 3, 3) is None, "a masked model that fills one position a pass"
    assert origins([step(0, 0, 0, 1)] * 3, 3) == ["decoded"] * 3


BYTES = [b"a", b"\xc3", b"\xa9", b" b", b"\xff"]


def decode(tokens: Any) -> str:
    """Bytes of tokens; the space of a first token is left out, as some tokenizers do."""
    return b"".join(BYTES[token] for token in tokens).decode("utf-8", "replace").removeprefix(" ")


def test_the_pieces_are_the_text() -> None:
    assert pieces(decode, [0, 1, 2, 3]) == ("a", "", "é", " b")
    assert "".join(pieces(decode, [3, 3, 0])) == decode([3, 3, 0])


def test_there_are_no_pieces_without_a_tokenizer() -> None:
    assert pieces(lambda tokens: "", [1, 2]) == ()
    assert pieces(lambda tokens: object(), [1, 2]) == ()
