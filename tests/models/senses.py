"""Models of transformers that see or hear: name -> class, configuration, its sizes, and what they are given."""

from __future__ import annotations

from typing import Any

from tests.models.text import LENGTH, VOCABULARY, WIDTH

IMAGE = 32
SAMPLES = 1600

_VISION = {
    "hidden_size": WIDTH,
    "intermediate_size": 2 * WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": IMAGE,
    "patch_size": 8,
}
_STAGES = {"embed_dim": 16, "depths": [1, 1], "num_heads": [2, 4], "image_size": IMAGE, "patch_size": 4}
_READING = {
    "hidden_size": WIDTH,
    "intermediate_size": 2 * WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": LENGTH,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_SOUND = {
    "vocab_size": VOCABULARY,
    "pad_token_id": 0,
    "hidden_size": WIDTH,
    "intermediate_size": 2 * WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "conv_dim": (16, 16, 16),
    "conv_kernel": (10, 3, 3),
    "conv_stride": (5, 4, 4),
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 4,
}

IMAGES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "beit": ("BeitForImageClassification", "BeitConfig", {**_VISION, "use_relative_position_bias": True}),
    "convnextv2": (
        "ConvNextV2ForImageClassification",
        "ConvNextV2Config",
        {"hidden_sizes": [16, 32], "depths": [1, 1], "num_stages": 2},
    ),
    "deit": ("DeiTForImageClassification", "DeiTConfig", _VISION),
    "dinov2": ("Dinov2ForImageClassification", "Dinov2Config", _VISION),
    "resnet": (
        "ResNetForImageClassification",
        "ResNetConfig",
        {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1], "layer_type": "basic"},
    ),
    "segformer": (
        "SegformerForSemanticSegmentation",
        "SegformerConfig",
        {
            "num_encoder_blocks": 2,
            "depths": [1, 1],
            "sr_ratios": [4, 2],
            "hidden_sizes": [16, 32],
            "patch_sizes": [7, 3],
            "strides": [4, 2],
            "num_attention_heads": [2, 4],
            "mlp_ratios": [2, 2],
            "decoder_hidden_size": WIDTH,
        },
    ),
    "swin": ("SwinForImageClassification", "SwinConfig", {**_STAGES, "window_size": 4}),
    "swinv2": ("Swinv2ForImageClassification", "Swinv2Config", {**_STAGES, "window_size": 4}),
    "vit": ("ViTForImageClassification", "ViTConfig", _VISION),
}

PAIRS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "clip": (
        "CLIPModel",
        "CLIPConfig",
        {"text_config": _READING, "vision_config": _VISION, "projection_dim": WIDTH},
    ),
    "siglip": ("SiglipModel", "SiglipConfig", {"text_config": _READING, "vision_config": _VISION}),
}

SOUNDS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "hubert": ("HubertForCTC", "HubertConfig", _SOUND),
    "wav2vec2": ("Wav2Vec2ForCTC", "Wav2Vec2Config", _SOUND),
    "wavlm": ("WavLMForCTC", "WavLMConfig", {**_SOUND, "num_buckets": 16, "max_bucket_distance": 32}),
}

SPECTRA: dict[str, tuple[str, str, dict[str, Any]]] = {
    "whisper": (
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        {
            "vocab_size": VOCABULARY,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "decoder_start_token_id": 1,
            "num_mel_bins": 16,
            "d_model": WIDTH,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 2 * WIDTH,
            "decoder_ffn_dim": 2 * WIDTH,
            "max_source_positions": 32,
            "max_target_positions": 64,
        },
    ),
}
