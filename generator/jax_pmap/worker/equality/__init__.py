"""That a parallel function is equal to its reference, derived stage by stage.

What is claimed (`claims`) is traced on counts of devices and on meshes (`traces`) and derived (`compare`) for
a batch like the given one; then on other counts of devices (`counts`), for batches of other sizes (`batches`)
and for inputs of other forms (`other_forms`). `padding` asks whether rows count that are added to a batch.
"""
