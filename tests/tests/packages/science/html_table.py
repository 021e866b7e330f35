import io
import pandas as pd

page = """<p>Towns</p><table><thead><tr><th>Town</th><th>People</th></tr></thead>
<tr><td>Bern<td>134,591</tr><tr><td>Z&uuml;rich<td>427,721</tr></table>"""
result = [pd.read_html(io.StringIO(page), flavor=flavor)[0] for flavor in ("lxml", "html5lib")]
