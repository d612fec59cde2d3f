"""Tiny models with eyes and random weights, as transformers writes them, and pictures for them."""

from __future__ import annotations

import base64
import hashlib
import inspect
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image

from localspec.core.types import Picture
from random_models import word_tokenizer

VOCAB, TOKEN = 48, 40  # the token that stands for a part of a picture
PART = "<image>"
TEMPLATE = (  # contents are lists of parts alone, as in LLaVA's own
    "{% for message in messages %}{{ message['role'] }}"
    "{% for part in message['content'] if part['type'] == 'image' %}MARK{% endfor %}"
    "{% for part in message['content'] if part['type'] == 'text' %} {{ part['text'] }}{% endfor %}"
    "{% endfor %}{% if add_generation_prompt %} assistant{% endif %}"
)
TEXT = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": None,
    "eos_token_id": 1,
    "pad_token_id": None,
    "tie_word_embeddings": False,
}
CLIP = {"hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2}
LLAVA_PIXELS = {
    "image_processor_type": "CLIPImageProcessor",
    "size": {"shortest_edge": 12},
    "crop_size": {"height": 12, "width": 12},
    "do_center_crop": True,
}
QWEN_PIXELS = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "patch_size": 4,
    "merge_size": 2,
    "temporal_patch_size": 2,
    "min_pixels": 16 * 16,
    "max_pixels": 40 * 40,
}


def _write_words(into: Path, mark: str) -> None:
    words = [f"w{number}" for number in range(VOCAB)]
    words[:4] = ["<unk>", "</s>", "user", "assistant"]
    words[TOKEN : TOKEN + 4] = [PART, "<video>", "<begin>", "<end>"]
    special = [words[at] for at in (0, 1, *range(TOKEN, TOKEN + 4))]
    word_tokenizer.write(into, words, special, TEMPLATE.replace("MARK", mark))


def picture(width: int, height: int, seed: int = 0) -> Picture:
    """Return a picture of coloured noise that is smooth enough to survive a resize."""
    coarse = np.random.default_rng(seed).integers(0, 256, (-(-height // 4), -(-width // 4), 3), np.uint8)
    pixels = coarse.repeat(4, 0).repeat(4, 1)[:height, :width].copy()
    return Picture(pixels, hashlib.sha256(pixels.tobytes() + bytes([seed])).hexdigest())


def saved(model: Any, into: Path, pixels: dict[str, Any], mark: str) -> Path:
    """Write a model with its preprocessor, its tokenizer, and a template in which a picture is a `mark`."""
    model.save_pretrained(into)
    _write_words(into, mark)
    (into / "preprocessor_config.json").write_text(json.dumps(pixels), encoding="utf-8")
    return into


def llava(into: Path, text: str = "llama") -> Path:
    """Write a LLaVA whose pictures are 9 tokens."""
    torch.manual_seed(0)
    config = transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(**CLIP, image_size=12, patch_size=4, projection_dim=24),
        text_config=transformers.AutoConfig.for_model(text, **TEXT),
        image_token_index=TOKEN,
    )
    return saved(_spread(transformers.LlavaForConditionalGeneration(config)), into, LLAVA_PIXELS, PART)


def qwen(into: Path) -> Path:
    """Write a Qwen2.5-VL, which reads pictures at nearly their own shape."""
    torch.manual_seed(0)
    eyes = {
        "depth": 2,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_heads": 2,
        "out_hidden_size": TEXT["hidden_size"],
        "patch_size": 4,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "window_size": 16,
        "fullatt_block_indexes": [1],
    }
    rope = {"type": "mrope", "mrope_section": [1, 1, 2]}
    config = transformers.Qwen2_5_VLConfig(
        text_config=TEXT | {"rope_scaling": rope},
        vision_config=eyes,
        image_token_id=TOKEN,
        video_token_id=TOKEN + 1,
        vision_start_token_id=TOKEN + 2,
        vision_end_token_id=TOKEN + 3,
        tie_word_embeddings=False,
    )
    return saved(
        _spread(transformers.Qwen2_5_VLForConditionalGeneration(config)),
        into,
        QWEN_PIXELS,
        f"<begin>{PART}<end>",
    )


def _spread(model: Any) -> Any:
    """Return a model whose attention and pictures matter: the library's first weights are nearly nothing."""
    for name, weight in model.named_parameters():
        if weight.ndim > 1:
            torch.nn.init.normal_(weight, std=1.2 * weight[0].numel() ** -0.5)
        elif name.endswith("bias"):
            torch.nn.init.normal_(weight, std=0.1)
    return model.eval()


def about_tokens(model: Any, ids: Any) -> dict[str, Any]:
    """Return which tokens of a prompt are visual, as processors of transformers 5 tell its models."""
    if "mm_token_type_ids" not in inspect.signature(model.forward).parameters:
        return {}
    return {"mm_token_type_ids": (ids == TOKEN).int()}


def of_text(into: Path) -> Path:
    """Write a language model of the same words, without eyes."""
    torch.manual_seed(1)
    config = transformers.LlamaConfig(**TEXT | {"num_hidden_layers": 2})
    _spread(transformers.LlamaForCausalLM(config)).save_pretrained(into)
    _write_words(into, "")
    return into


def encoded(seed: int = 0, width: int = 40, height: int = 28) -> str:
    """Return a picture in base64, as a message holds it."""
    file = io.BytesIO()
    Image.fromarray(picture(width, height, seed).pixels).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()
