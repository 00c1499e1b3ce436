"""All audits of some members on one corpus: from texts to a report for people.

sampling, gathering     the texts of an audit; what the members make of them
selection               self-retrieval, and the members to keep
running, folder         every audit of `uec.audits`, one after the other; where they are kept
verdict                 what was found, in words
figures, sections, report    the page, of `uec.page` and `uec.drawing`
words                   the words that an audited embedding holds
"""
