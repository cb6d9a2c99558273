"""Huawei Ascend NPUs, read through the tool ``npu-smi``."""
