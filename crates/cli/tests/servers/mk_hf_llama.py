"""A tiny Llama with random weights as a Hugging Face folder: config, weights, a byte-level tokenizer and a chat template."""
import argparse
import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

ap = argparse.ArgumentParser()
ap.add_argument("folder", type=Path)
ap.add_argument("--hidden", type=int, default=128)
ap.add_argument("--layers", type=int, default=2)
a = ap.parse_args()
# vLLM's attention on the CPU takes heads of 64.
HEAD, VOCAB, INNER = 64, 512, 4 * a.hidden
a.folder.mkdir(parents=True, exist_ok=True)
config = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": a.hidden, "intermediate_size": INNER,
    "num_hidden_layers": a.layers, "num_attention_heads": a.hidden // HEAD, "num_key_value_heads": a.hidden // HEAD, "head_dim": HEAD,
    "vocab_size": VOCAB, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
    "tie_word_embeddings": False, "torch_dtype": "float32", "bos_token_id": 256, "eos_token_id": 257, "pad_token_id": 257,
}
(a.folder / "config.json").write_text(json.dumps(config, indent=1))
(a.folder / "generation_config.json").write_text(json.dumps({"bos_token_id": 256, "eos_token_id": 257}))

torch.manual_seed(1)
def rand(*shape):
    return torch.randn(*shape) * 0.02

weights = {"model.embed_tokens.weight": rand(VOCAB, a.hidden), "model.norm.weight": torch.ones(a.hidden), "lm_head.weight": rand(VOCAB, a.hidden)}
for n in range(a.layers):
    layer = f"model.layers.{n}."
    for name in ("q", "k", "v", "o"):
        weights[f"{layer}self_attn.{name}_proj.weight"] = rand(a.hidden, a.hidden)
    weights[f"{layer}mlp.gate_proj.weight"] = rand(INNER, a.hidden)
    weights[f"{layer}mlp.up_proj.weight"] = rand(INNER, a.hidden)
    weights[f"{layer}mlp.down_proj.weight"] = rand(a.hidden, INNER)
    weights[f"{layer}input_layernorm.weight"] = torch.ones(a.hidden)
    weights[f"{layer}post_attention_layernorm.weight"] = torch.ones(a.hidden)
save_file(weights, a.folder / "model.safetensors", metadata={"format": "pt"})

# One token a byte, two of control, and the rest for nothing.
letters = sorted(pre_tokenizers.ByteLevel.alphabet())
vocab = {letter: n for n, letter in enumerate(letters)} | {"<s>": 256, "</s>": 257} | {f"<{n}>": n for n in range(258, VOCAB)}
tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
tokenizer.add_special_tokens(["<s>", "</s>"])
tokenizer.save(str(a.folder / "tokenizer.json"))
template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"
(a.folder / "tokenizer_config.json").write_text(json.dumps({
    "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", "model_max_length": 4096, "chat_template": template}))
print(a.folder)
