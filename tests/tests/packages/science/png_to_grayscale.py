from PIL import Image

stripes = Image.new("RGB", (90, 20))
for place, colour in enumerate([(255, 0, 0), (0, 255, 0), (0, 0, 255)]):
    stripes.paste(colour, (place * 30, 0, place * 30 + 30, 20))
stripes.save("/tmp/stripes.png")
gray = Image.open("/tmp/stripes.png").convert("L")
gray.save("/artifacts/gray.png")
result = [gray.mode, sorted(colour for _, colour in gray.getcolors())]
