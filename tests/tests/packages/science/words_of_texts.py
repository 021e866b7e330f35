from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.metrics.pairwise import cosine_similarity

texts = ["the cat sat on the mat", "a cat sat on a mat", "stocks fell sharply today", "stocks rose today"]
vectors = TfidfVectorizer(stop_words="english")
matrix = vectors.fit_transform(texts)
near = cosine_similarity(matrix)
words = vectors.get_feature_names_out()
result = {"words": words, "same": near[0, 1], "apart": near[0, 2], "best": words[matrix[3].toarray().argmax()]}
