"""The int8 checkpoint: how far rounding may be off, and what is left as it is."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from cluster.node.int8_checkpoint import rounded, write_int8_checkpoint


def test_a_rounded_weight_is_off_by_at_most_half_a_step_of_its_own_channel() -> None:
    weight = torch.tensor([[1.0, -0.5, 0.25], [100.0, 0.3, -60.0]])
    whole, scale = rounded(weight)
    assert whole.dtype == torch.int8
    # The largest of each channel becomes 127, so a step is 1/127 and 100/127.
    assert torch.allclose(scale, torch.tensor([[1 / 127], [100 / 127]]))
    assert ((whole.float() * scale - weight).abs() <= scale / 2 + 1e-6).all()


def test_a_channel_of_zeros_stays_zeros() -> None:
    whole, scale = rounded(torch.zeros(2, 3))
    assert not whole.any()
    assert torch.isfinite(scale).all()


def test_only_projections_are_rounded_and_the_config_says_how(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    tensors = {
        "model.layers.0.self_attn.q_proj.weight": torch.randn(4, 8, dtype=torch.bfloat16),
        "model.embed_tokens.weight": torch.randn(16, 8, dtype=torch.bfloat16),
        "model.norm.weight": torch.ones(8, dtype=torch.bfloat16),
    }
    save_file(tensors, source / "model.safetensors")
    (source / "config.json").write_text('{"model_type": "llama"}')
    (source / "tokenizer.json").write_text("{}")
    write_int8_checkpoint(source, target)
    written = load_file(target / "model.safetensors")
    assert written["model.layers.0.self_attn.q_proj.weight"].dtype == torch.int8
    assert written["model.layers.0.self_attn.q_proj.weight_scale"].shape == (4, 1)
    assert torch.equal(written["model.embed_tokens.weight"], tensors["model.embed_tokens.weight"])
    config = json.loads((target / "config.json").read_text())
    assert config["quantization_config"]["quant_method"] == "compressed-tensors"
    assert (target / "tokenizer.json").exists()
