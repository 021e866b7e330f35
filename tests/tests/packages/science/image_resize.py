import numpy as np
from PIL import Image

across = np.linspace(0, 255, 400).round().astype("uint8")
picture = np.zeros((300, 400, 3), dtype="uint8")
picture[:, :, 0] = across
picture[150:, :, 2] = 200
small = Image.fromarray(picture).resize((200, 150), Image.Resampling.BOX)
small.save("/artifacts/small.png")
result = [small.size, small.getpixel((0, 0)), small.getpixel((199, 0)), small.getpixel((100, 149))]
