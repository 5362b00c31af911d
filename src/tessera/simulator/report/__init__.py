"""The report of a simulation: one HTML page with pictures, and the same pictures as files.

Made from what a simulation leaves in its folder and nothing else (:mod:`tessera.simulator`), so that it can be
made again at any time. The page needs no network and no script; it follows the reader's light or dark setting, and
every picture has its numbers in a table below it. All numbers are worked out in ``figures`` and put into words in
``answer``; the other modules only draw.
"""
