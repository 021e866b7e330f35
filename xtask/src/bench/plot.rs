//! Plots of times as SVG, which follow the reader's choice of light or dark.

const WIDTH: f64 = 800.0;
/// The space for labels, left of the bars, and that for times, right of them.
const LEFT: f64 = 340.0;
const RIGHT: f64 = 80.0;
const TOP: f64 = 44.0;
const ROW: f64 = 24.0;
const STYLE: &str = "text{font:13px system-ui,sans-serif;fill:#1f2328}.small{font-size:11px}.grid{stroke:#d1d9e0}\
.bar{fill:#8c959f}.ours{fill:#0969da}.most{stroke:#1f2328;stroke-width:1.5}\
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.grid{stroke:#3d444d}.bar{fill:#6e7681}.ours{fill:#4493f8}\
.most{stroke:#e6edf3}}";

/// One line of a plot: a bar up to the median, and a line up to the time of 99 % of the calls, in µs.
pub(super) struct Bar {
    pub(super) label: String,
    pub(super) is_ours: bool,
    pub(super) half: f64,
    pub(super) most: f64,
    /// The median, for the end of the line.
    pub(super) text: String,
}

/// The scale of the times.
#[derive(Clone, Copy)]
pub(super) enum Scale {
    /// Whole decades. A time that is shorter than a microsecond begins the first one.
    Logarithmic,
    /// The bars have the ratios of their times.
    FromZero,
}

impl Scale {
    fn caption(self) -> &'static str {
        match self {
            Self::Logarithmic => "bar: p50, line: p99, logarithmic",
            Self::FromZero => "bar: p50, line: p99",
        }
    }

    /// The place of a time on the axis.
    fn project(self, micros: f64) -> f64 {
        match self {
            Self::Logarithmic => micros.max(1.0).log10(),
            Self::FromZero => micros,
        }
    }

    /// The time at a place, in whole µs.
    fn restore(self, place: f64) -> f64 {
        match self {
            Self::Logarithmic => 10_f64.powf(place).round(),
            Self::FromZero => place.round(),
        }
    }

    /// The first and the last place of the axis, and the distance of its marks.
    fn extent(self, bars: &[Bar]) -> [f64; 3] {
        let places = bars.iter().flat_map(|bar| [bar.half, bar.most]).map(|time| self.project(time));
        let [first, last] =
            places.fold([f64::MAX, 0.0], |[low, high], place| [low.min(place), high.max(place)]);
        match self {
            Self::Logarithmic => {
                let low = first.min(last).floor();
                [low, last.ceil().max(low + 1.0), 1.0]
            }
            Self::FromZero => {
                let decade = 10_f64.powf(last.max(10.0).log10().floor());
                let part = if last > 5.0 * decade { 1.0 } else { 0.5 };
                let step = decade * if last > 2.0 * decade { part } else { 0.2 };
                [0.0, step * (last / step).ceil().max(1.0), step]
            }
        }
    }
}

/// Draws bars.
pub(super) fn draw(title: &str, bars: &[Bar], scale: Scale) -> String {
    let [low, high, step] = scale.extent(bars);
    let position = |micros: f64| LEFT + (WIDTH - LEFT - RIGHT) * (scale.project(micros) - low) / (high - low);
    let height = bars.iter().fold(TOP + 8.0, |height, _| height + ROW);
    let title = escape(title);
    let caption = scale.caption();
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" \
         aria-label=\"{title}\">\n<title>{title}</title>\n<style>{STYLE}</style>\n\
         <text class=\"small\" x=\"8\" y=\"14\">{caption}</text>\n"
    );
    let mut mark = low;
    // Half a step more, because sums of fractions are not exact.
    while mark < high + step / 2.0 {
        let micros = scale.restore(mark);
        let x = position(micros);
        let bottom = height - 4.0;
        let y = TOP - 6.0;
        let time = show_mark(micros);
        svg += &format!(
            "<line class=\"grid\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TOP}\" y2=\"{bottom}\"/>\
             <text class=\"small\" x=\"{x:.1}\" y=\"{y}\" text-anchor=\"middle\">{time}</text>\n"
        );
        mark += step;
    }
    let mut top = TOP + 4.0;
    for bar in bars {
        let [half, most] = [bar.half, bar.most].map(position);
        let class = if bar.is_ours { "ours" } else { "bar" };
        // The least width that is still seen.
        let width = (half - LEFT).max(2.0);
        let middle = top + 8.0;
        let baseline = top + 12.0;
        let [label_end, text_start] = [LEFT - 8.0, half.max(most) + 6.0];
        let label = escape(&bar.label);
        let text = escape(&bar.text);
        svg += &format!(
            "<text x=\"{label_end}\" y=\"{baseline}\" text-anchor=\"end\">{label}</text>\
             <rect class=\"{class}\" x=\"{LEFT}\" y=\"{top}\" width=\"{width:.1}\" height=\"16\"/>\
             <line class=\"most\" x1=\"{half:.1}\" x2=\"{most:.1}\" y1=\"{middle}\" y2=\"{middle}\"/>\
             <text x=\"{text_start:.1}\" y=\"{baseline}\">{text}</text>\n"
        );
        top += ROW;
    }
    svg + "</svg>\n"
}

/// A round time, with the unit that makes it short.
fn show_mark(micros: f64) -> String {
    if micros < 1e3 {
        format!("{micros} µs")
    } else if micros < 1e6 {
        format!("{} ms", micros / 1e3)
    } else {
        format!("{} s", micros / 1e6)
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bar(label: &str, half: f64, most: f64) -> Bar {
        Bar { label: label.to_owned(), is_ours: label.is_empty(), half, most, text: "the median".to_owned() }
    }

    #[test]
    fn bars_are_on_one_logarithmic_scale() {
        let svg = draw("1 < 2", &[bar("", 10.0, 100.0), bar("a & b", 1_000.0, 90_000.0)], Scale::Logarithmic);
        // Four decades of 95 each, from 10 µs to 100 ms.
        for part in [
            "<title>1 &lt; 2</title>",
            ">a &amp; b</text>",
            "class=\"ours\" x=\"340\" y=\"48\" width=\"2.0\"",
            "class=\"bar\" x=\"340\" y=\"72\" width=\"190.0\"",
            "x1=\"340.0\" x2=\"435.0\" y1=\"56\"",
            ">10 µs</text>",
            ">100 ms</text>",
            "prefers-color-scheme:dark",
        ] {
            assert!(svg.contains(part), "{part} is not in\n{svg}");
        }
        assert_eq!(svg.matches("class=\"grid\"").count(), 5);
    }

    #[test]
    fn bars_from_zero_have_the_ratios_of_their_times() {
        let svg = draw("grows", &[bar("", 500.0, 900.0), bar("", 1_000.0, 1_150.0)], Scale::FromZero);
        // Six steps of 200 µs, up to 1.2 ms, have a width of 380.
        for part in ["width=\"158.3\"", "width=\"316.7\"", ">0 µs</text>", ">800 µs</text>", ">1.2 ms</text>"]
        {
            assert!(svg.contains(part), "{part} is not in\n{svg}");
        }
        assert_eq!(svg.matches("class=\"grid\"").count(), 7);
    }

    #[test]
    fn a_plot_without_bars_is_a_picture_all_the_same() {
        for scale in [Scale::Logarithmic, Scale::FromZero] {
            assert!(draw("nothing", &[], scale).ends_with("</svg>\n"));
        }
    }
}
