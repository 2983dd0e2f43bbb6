"""Networks of torchvision and timm: name -> how it is made, small where its constructor lets us choose."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from tests.models import packages  # noqa: F401 - first: makes the others importable

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

IMAGE = 64
CLASSES = 10
SIDES = {"timm/eva02": 56}
"""Sides of images where `IMAGE` does not do, in pixels."""


def _torchvision(name: str, **options: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        from torchvision import models  # noqa: PLC0415 - only the one that is asked for pays

        return models.get_model(name, weights=None, num_classes=CLASSES, **options)

    return build


def _alexnet() -> nn.Module:
    from torch.nn import Linear  # noqa: PLC0415 - as above
    from torchvision.models import AlexNet  # noqa: PLC0415

    network = AlexNet(num_classes=CLASSES)
    network.classifier = Linear(256 * 6 * 6, CLASSES)  # in place of three of 55 million weights
    return network


def _vgg() -> nn.Module:
    from torch.nn import Linear  # noqa: PLC0415
    from torchvision.models.vgg import VGG, make_layers  # noqa: PLC0415

    network = VGG(make_layers([16, "M", 32, "M", 32, 32, "M"], batch_norm=True), num_classes=CLASSES)
    network.classifier = Linear(32 * 7 * 7, CLASSES)  # as above; made for 512 channels
    return network


def _resnet() -> nn.Module:
    from torchvision.models.resnet import BasicBlock, ResNet  # noqa: PLC0415

    return ResNet(BasicBlock, [1, 1, 1, 1], num_classes=CLASSES)


def _densenet() -> nn.Module:
    from torchvision.models import DenseNet  # noqa: PLC0415

    return DenseNet(growth_rate=8, block_config=(2, 2, 2), num_init_features=16, num_classes=CLASSES)


def _convnext() -> nn.Module:
    from torchvision.models.convnext import CNBlockConfig, ConvNeXt  # noqa: PLC0415

    return ConvNeXt([CNBlockConfig(16, 32, 1), CNBlockConfig(32, None, 1)], num_classes=CLASSES)


def _swin(block: str) -> nn.Module:
    from torchvision.models import swin_transformer as module  # noqa: PLC0415

    options: dict[str, Any] = {"block": module.SwinTransformerBlock}
    if block == "v2":
        options = {"block": module.SwinTransformerBlockV2, "downsample_layer": module.PatchMergingV2}
    return module.SwinTransformer(
        patch_size=[4, 4],
        embed_dim=16,
        depths=[2, 2],
        num_heads=[2, 4],
        window_size=[4, 4],
        stochastic_depth_prob=0.0,
        num_classes=CLASSES,
        **options,
    )


def _vit() -> nn.Module:
    from torchvision.models import VisionTransformer  # noqa: PLC0415

    return VisionTransformer(
        image_size=IMAGE, patch_size=16, num_layers=2, num_heads=4, hidden_dim=32, mlp_dim=64, num_classes=CLASSES
    )


def _maxvit() -> nn.Module:
    from torchvision.models import MaxVit  # noqa: PLC0415

    return MaxVit(
        input_size=(IMAGE, IMAGE),
        stem_channels=16,
        partition_size=4,
        block_channels=[16, 32],
        block_layers=[1, 1],
        head_dim=8,
        stochastic_depth_prob=0.0,
        num_classes=CLASSES,
    )


def _timm(name: str, **options: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        import timm  # noqa: PLC0415

        return timm.create_model(name, pretrained=False, num_classes=CLASSES, **options)

    return build


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "torchvision/alexnet": _alexnet,
    "torchvision/convnext": _convnext,
    "torchvision/densenet": _densenet,
    "torchvision/efficientnet_b0": _torchvision("efficientnet_b0"),
    "torchvision/googlenet": _torchvision("googlenet", aux_logits=False, init_weights=False),
    "torchvision/maxvit": _maxvit,
    "torchvision/mnasnet0_5": _torchvision("mnasnet0_5"),
    "torchvision/mobilenet_v2": _torchvision("mobilenet_v2", width_mult=0.25),
    "torchvision/mobilenet_v3_small": _torchvision("mobilenet_v3_small"),
    "torchvision/regnet_y_400mf": _torchvision("regnet_y_400mf"),
    "torchvision/resnet": _resnet,
    "torchvision/shufflenet_v2_x0_5": _torchvision("shufflenet_v2_x0_5"),
    "torchvision/squeezenet1_1": _torchvision("squeezenet1_1"),
    "torchvision/swin": partial(_swin, "v1"),
    "torchvision/swin_v2": partial(_swin, "v2"),
    "torchvision/vgg_bn": _vgg,
    "torchvision/vit": _vit,
    "timm/beit": _timm("beit_base_patch16_224", img_size=IMAGE, depth=2, embed_dim=32, num_heads=4),
    "timm/cait": _timm("cait_xxs24_224", img_size=IMAGE, depth=2, embed_dim=32, num_heads=4),
    "timm/deit3": _timm("deit3_small_patch16_224", img_size=IMAGE, depth=2, embed_dim=32, num_heads=4),
    "timm/edgenext": _timm("edgenext_xx_small"),
    "timm/eva02": _timm("eva02_tiny_patch14_224", img_size=56, depth=2, embed_dim=32, num_heads=4),
    "timm/ghostnet": _timm("ghostnet_050"),
    "timm/mobilevit": _timm("mobilevit_xxs"),
    "timm/nfnet": _timm("nf_resnet26"),
    "timm/repvgg": _timm("repvgg_a0"),
    "timm/resnet10t": _timm("resnet10t"),
    "timm/vit_relpos": _timm("vit_relpos_small_patch16_224", img_size=IMAGE, depth=2, embed_dim=32, num_heads=4),
    "timm/xcit": _timm("xcit_nano_12_p16_224", img_size=IMAGE, depth=2, embed_dim=32, num_heads=4),
}
