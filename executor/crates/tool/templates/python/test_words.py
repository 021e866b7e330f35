import unittest

from words import count_words


class Words(unittest.TestCase):
    def test_words_are_counted(self):
        self.assertEqual(count_words("one two\n three"), 3)
        self.assertEqual(count_words(" "), 0)


if __name__ == "__main__":
    unittest.main()
