"""Bridge from Alertmanager's webhook to the group robots of DingTalk, Feishu (Lark) and WeCom."""
