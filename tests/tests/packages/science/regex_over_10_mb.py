import re

line = "2026-03-04 12:00:00 host-{} GET /item/{} 200 {}\n"
text = "".join(line.format(number % 10, number, number % 1000) for number in range(220_000))
found = re.findall(r"host-7 GET /item/(\d*7) 200 (\d+)$", text, re.MULTILINE)
slow = re.findall(r"^\S+ \S+ (host-\d) .* 99\d$", text, re.MULTILINE)
result = {"megabytes": len(text) // 10**6, "found": len(found), "slow": len(slow), "last": slow[-1]}
