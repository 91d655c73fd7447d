"""The code that a converted model runs on, which is copied into every export.

One file for each family of models, and shared ones. They import only torch, transformers and each other, by
single-dot imports, because that is what ``trust_remote_code=True`` can load from an exported folder.
"""

import transformers  # noqa: F401  # first, because its import registers all of these modules (collab.models.registration)
