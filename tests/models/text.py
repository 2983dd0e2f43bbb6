"""Language models of transformers: name -> class, configuration, and its sizes; all of two layers and width 32."""

from __future__ import annotations

from typing import Any

VOCABULARY = 64
WIDTH = 32
LENGTH = 16

_IDS = {"vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_PLAIN = {
    **_IDS,
    "hidden_size": WIDTH,
    "intermediate_size": 2 * WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
_GROUPED = {**_PLAIN, "num_key_value_heads": 2, "head_dim": 8}
_EXPERTS = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": WIDTH}
_GPT = {**_IDS, "n_embd": WIDTH, "n_layer": 2, "n_head": 4, "n_positions": 64}
_BERT = {**_PLAIN, "type_vocab_size": 2}
_BART = {
    **_IDS,
    "d_model": WIDTH,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 2 * WIDTH,
    "decoder_ffn_dim": 2 * WIDTH,
    "max_position_embeddings": 64,
    "decoder_start_token_id": 1,
}
_T5 = {
    **_IDS,
    "d_model": WIDTH,
    "d_kv": 8,
    "d_ff": 2 * WIDTH,
    "num_layers": 2,
    "num_decoder_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 0,
}
_MAMBA = {**_IDS, "hidden_size": WIDTH, "state_size": 8, "num_hidden_layers": 2, "conv_kernel": 4, "expand": 2}

DECODERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "arcee": ("ArceeForCausalLM", "ArceeConfig", _GROUPED),
    "biogpt": ("BioGptForCausalLM", "BioGptConfig", _PLAIN),
    "bloom": ("BloomForCausalLM", "BloomConfig", {**_IDS, "hidden_size": WIDTH, "n_layer": 2, "n_head": 4}),
    "codegen": ("CodeGenForCausalLM", "CodeGenConfig", {**_GPT, "rotary_dim": 4, "n_ctx": 64}),
    "cohere": ("CohereForCausalLM", "CohereConfig", _GROUPED),
    "cohere2": ("Cohere2ForCausalLM", "Cohere2Config", {**_GROUPED, "sliding_window": 8}),
    "deepseek_v3": (
        "DeepseekV3ForCausalLM",
        "DeepseekV3Config",
        {
            **_PLAIN,
            "num_key_value_heads": 4,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "n_group": 2,
            "topk_group": 1,
            "moe_intermediate_size": WIDTH,
            "q_lora_rank": 16,
            "kv_lora_rank": 16,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 8,
            "v_head_dim": 8,
            "first_k_dense_replace": 1,
        },
    ),
    "diffllama": ("DiffLlamaForCausalLM", "DiffLlamaConfig", _GROUPED),
    "falcon": (
        "FalconForCausalLM",
        "FalconConfig",
        {**_PLAIN, "new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 2},
    ),
    "falcon_mamba": ("FalconMambaForCausalLM", "FalconMambaConfig", _MAMBA),
    "gemma": ("GemmaForCausalLM", "GemmaConfig", _GROUPED),
    "gemma2": ("Gemma2ForCausalLM", "Gemma2Config", {**_GROUPED, "sliding_window": 8}),
    "gemma3": ("Gemma3ForCausalLM", "Gemma3TextConfig", {**_GROUPED, "sliding_window": 8}),
    "glm4": ("Glm4ForCausalLM", "Glm4Config", _GROUPED),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", _GPT),
    "gpt_bigcode": ("GPTBigCodeForCausalLM", "GPTBigCodeConfig", _GPT),
    "gpt_neo": (
        "GPTNeoForCausalLM",
        "GPTNeoConfig",
        {
            **_IDS,
            "hidden_size": WIDTH,
            "num_layers": 2,
            "num_heads": 4,
            "attention_types": [[["global", "local"], 1]],
            "window_size": 8,
            "max_position_embeddings": 64,
        },
    ),
    "gpt_neox": ("GPTNeoXForCausalLM", "GPTNeoXConfig", _PLAIN),
    "gpt_oss": ("GptOssForCausalLM", "GptOssConfig", {**_GROUPED, **_EXPERTS, "sliding_window": 8}),
    "gptj": ("GPTJForCausalLM", "GPTJConfig", {**_GPT, "rotary_dim": 4}),
    "granite": ("GraniteForCausalLM", "GraniteConfig", _GROUPED),
    "granitemoe": ("GraniteMoeForCausalLM", "GraniteMoeConfig", {**_GROUPED, **_EXPERTS}),
    "llama": ("LlamaForCausalLM", "LlamaConfig", _GROUPED),
    "mamba": ("MambaForCausalLM", "MambaConfig", _MAMBA),
    "mamba2": (
        "Mamba2ForCausalLM",
        "Mamba2Config",
        {**_MAMBA, "num_heads": 8, "head_dim": 8, "n_groups": 2, "chunk_size": 8},
    ),
    "mistral": ("MistralForCausalLM", "MistralConfig", {**_GROUPED, "sliding_window": 8}),
    "mixtral": ("MixtralForCausalLM", "MixtralConfig", {**_GROUPED, **_EXPERTS}),
    "modernbert_decoder": ("ModernBertDecoderForCausalLM", "ModernBertDecoderConfig", _PLAIN),
    "mpt": ("MptForCausalLM", "MptConfig", {**_IDS, "d_model": WIDTH, "n_heads": 4, "n_layers": 2, "max_seq_len": 64}),
    "nemotron": ("NemotronForCausalLM", "NemotronConfig", _GROUPED),
    "olmo": ("OlmoForCausalLM", "OlmoConfig", _GROUPED),
    "olmo2": ("Olmo2ForCausalLM", "Olmo2Config", _GROUPED),
    "olmoe": ("OlmoeForCausalLM", "OlmoeConfig", {**_GROUPED, **_EXPERTS}),
    "opt": ("OPTForCausalLM", "OPTConfig", {**_PLAIN, "ffn_dim": 2 * WIDTH, "word_embed_proj_dim": WIDTH}),
    "persimmon": ("PersimmonForCausalLM", "PersimmonConfig", _PLAIN),
    "phi": ("PhiForCausalLM", "PhiConfig", _PLAIN),
    "phi3": ("Phi3ForCausalLM", "Phi3Config", {**_GROUPED, "original_max_position_embeddings": 64}),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", _GROUPED),
    "qwen2_moe": (
        "Qwen2MoeForCausalLM",
        "Qwen2MoeConfig",
        {**_GROUPED, **_EXPERTS, "shared_expert_intermediate_size": WIDTH},
    ),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", _GROUPED),
    "qwen3_moe": ("Qwen3MoeForCausalLM", "Qwen3MoeConfig", {**_GROUPED, **_EXPERTS}),
    "rwkv": (
        "RwkvForCausalLM",
        "RwkvConfig",
        {**_IDS, "hidden_size": WIDTH, "num_hidden_layers": 2, "context_length": 64, "attention_hidden_size": WIDTH},
    ),
    "smollm3": ("SmolLM3ForCausalLM", "SmolLM3Config", _GROUPED),
    "stablelm": ("StableLmForCausalLM", "StableLmConfig", _GROUPED),
    "starcoder2": ("Starcoder2ForCausalLM", "Starcoder2Config", _GROUPED),
}

MIXTURES = {"deepseek_v3", "gpt_oss", "granitemoe", "mixtral", "olmoe", "qwen2_moe", "qwen3_moe"}
"""Decoders of several experts, of which each token goes through a few."""

ENCODERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "albert": ("AlbertForMaskedLM", "AlbertConfig", {**_BERT, "embedding_size": 16}),
    "bert": ("BertForMaskedLM", "BertConfig", _BERT),
    "camembert": ("CamembertForMaskedLM", "CamembertConfig", _BERT),
    "convbert": ("ConvBertForMaskedLM", "ConvBertConfig", {**_BERT, "embedding_size": WIDTH, "conv_kernel_size": 3}),
    "deberta": (
        "DebertaForMaskedLM",
        "DebertaConfig",
        {**_BERT, "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "max_relative_positions": 32},
    ),
    "deberta_v2": (
        "DebertaV2ForMaskedLM",
        "DebertaV2Config",
        {**_BERT, "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 16},
    ),
    "distilbert": (
        "DistilBertForMaskedLM",
        "DistilBertConfig",
        {**_IDS, "dim": WIDTH, "hidden_dim": 2 * WIDTH, "n_layers": 2, "n_heads": 4, "max_position_embeddings": 64},
    ),
    "electra": ("ElectraForMaskedLM", "ElectraConfig", {**_BERT, "embedding_size": 16}),
    "fnet": ("FNetForMaskedLM", "FNetConfig", _BERT),
    "modernbert": ("ModernBertForMaskedLM", "ModernBertConfig", {**_PLAIN, "local_attention": 8}),
    "mpnet": ("MPNetForMaskedLM", "MPNetConfig", _PLAIN),
    "roberta": ("RobertaForMaskedLM", "RobertaConfig", _BERT),
    "roformer": ("RoFormerForMaskedLM", "RoFormerConfig", {**_BERT, "embedding_size": WIDTH}),
    "squeezebert": ("SqueezeBertForMaskedLM", "SqueezeBertConfig", {**_BERT, "embedding_size": WIDTH}),
    "xlnet": ("XLNetLMHeadModel", "XLNetConfig", {**_IDS, "d_model": WIDTH, "n_layer": 2, "n_head": 4, "d_inner": 64}),
}

TRANSLATORS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bart": ("BartForConditionalGeneration", "BartConfig", _BART),
    "blenderbot": ("BlenderbotForConditionalGeneration", "BlenderbotConfig", _BART),
    "m2m_100": ("M2M100ForConditionalGeneration", "M2M100Config", _BART),
    "marian": ("MarianMTModel", "MarianConfig", _BART),
    "mbart": ("MBartForConditionalGeneration", "MBartConfig", _BART),
    "mt5": ("MT5ForConditionalGeneration", "MT5Config", _T5),
    "pegasus": ("PegasusForConditionalGeneration", "PegasusConfig", _BART),
    "switch_transformers": (
        "SwitchTransformersForConditionalGeneration",
        "SwitchTransformersConfig",
        {
            **_T5,
            "num_experts": 4,
            "expert_capacity": 64,
            "num_sparse_encoder_layers": 1,
            "num_sparse_decoder_layers": 1,
        },
    ),
    "t5": ("T5ForConditionalGeneration", "T5Config", _T5),
}
