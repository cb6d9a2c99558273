"""The platforms by the name that a robot's ``type`` gives."""

from __future__ import annotations

from collections.abc import Mapping

from k3observe.notify.dingtalk import DingTalk
from k3observe.notify.feishu import FEISHU, LARK
from k3observe.notify.robot import Platform
from k3observe.notify.wecom import WeCom

PLATFORMS: Mapping[str, Platform] = {platform.name: platform for platform in (DingTalk(), FEISHU, LARK, WeCom())}
