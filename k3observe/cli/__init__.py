"""The command ``k3observe``: one small module a sub-command."""
