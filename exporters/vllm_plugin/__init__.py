"""A plugin inside vLLM's workers that publishes exact expert loads; off unless ``K3OBSERVE_EXPERTS_DIR`` is set.

The standard library is all it imports until vLLM itself loads its expert-parallel load balancer.
"""

from k3observe.exporters.vllm_plugin.hook import register

__all__ = ["register"]
