"""The model in the terms of transformers' Llama: names of tensors, config.json, generation_config.json.

The values stay the same. Rotary pairs are (i, i + head_dim / 2) in both, so no row is permuted. A tied model has no
lm_head (`tie_word_embeddings`).
"""

from typing import Any, Literal

from murmur.protocol.spec import ModelSpec

Dtype = Literal["bfloat16", "float32"]

_LAYER = {
    "attention_norm": "input_layernorm",
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn.gate": "mlp.gate_proj",
    "ffn.up": "mlp.up_proj",
    "ffn.down": "mlp.down_proj",
}
_ENDS = {
    "embedding.weight": "model.embed_tokens.weight",
    "norm.weight": "model.norm.weight",
    "head.weight": "lm_head.weight",
}


def names(model: ModelSpec) -> dict[str, str]:
    """Map our name of every tensor to transformers', from the embedding to the head."""
    return {name: _renamed(name) for name in model.shapes()}


def _renamed(name: str) -> str:
    if name in _ENDS:
        return _ENDS[name]
    _, number, part = name.removesuffix(".weight").split(".", 2)
    return f"model.layers.{number}.{_LAYER[part]}.weight"


def config(model: ModelSpec, dtype: Dtype, end: int) -> dict[str, Any]:
    """Return config.json. `end`: the id that ends a document. transformers 5 reads `rope_parameters` and `dtype`,
    earlier readers the flat `rope_theta` and `torch_dtype`."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": model.vocabulary,
        "hidden_size": model.width,
        "intermediate_size": model.ffn,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.width // model.heads,
        "hidden_act": "silu",
        "max_position_embeddings": model.context,
        "rms_norm_eps": model.norm_epsilon,
        "rope_theta": model.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": model.rope_theta},
        "tie_word_embeddings": model.tie_embeddings,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
        "bos_token_id": None,
        "eos_token_id": end,
        "dtype": dtype,
        "torch_dtype": dtype,
        "use_cache": True,
    }


def generation_config(end: int) -> dict[str, Any]:
    """Return generation_config.json: the id that ends an answer, and the one that pads shorter answers of a batch."""
    return {"eos_token_id": end, "pad_token_id": end}
