from lxml import etree

text = b"""<?xml version="1.0"?>
<orders xmlns="urn:shop">
  <order id="1"><item price="2.50">tea</item><item price="4.00">cake</item></order>
  <order id="2"><item price="3.25">juice &amp; ice</item></order>
</orders>"""
root = etree.fromstring(text)
names = {"s": "urn:shop"}
result = {
    order.get("id"): [sum(map(float, order.xpath("s:item/@price", namespaces=names))), order.findtext("s:item", None, names)]
    for order in root.iterfind("s:order", names)
}
