"""Images as typed columns: JSON objects become Arrow arrays by the schema of their version.

::

    reader = ColumnReader(schema.columns("product"))       # or only the columns that are needed
    found = reader.read(images, columns_of_their_version)  # a binary array → one array for each column
    found.batch, found.present["price"], found.misfits
"""
