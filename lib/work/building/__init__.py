"""How a named network is built: ``inputs``, what libraries have (``timm_models``, ``hugging_face``), and ``fakes``.

``fakes`` are tensors without memory, of which a network is built for capture. ``values`` answer where it reads some, and
``autocasts`` cast as torch.autocast does on a device.
"""
