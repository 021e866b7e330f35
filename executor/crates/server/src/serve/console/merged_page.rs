//! Searches over all nodes of a fleet: each node finds a page, and the pages are merged, newest first.

use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use time::OffsetDateTime;

/// What one node has found, newest first, in the form for another node.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct NodePage<T> {
    pub(super) rows: VecDeque<NodeRow<T>>,
    /// The number before which its next page begins; `None` on its last page.
    pub(super) next: Option<u64>,
    /// The time of the last row that was searched; `None` if none was.
    #[serde(with = "time::serde::rfc3339::option")]
    pub(super) searched_until: Option<OffsetDateTime>,
    /// `false` if the search ran out of time before the page was full.
    pub(super) is_complete: bool,
}

/// A row, with its number at its node and its time.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct NodeRow<T> {
    pub(super) number: u64,
    #[serde(with = "time::serde::rfc3339")]
    pub(super) at: OffsetDateTime,
    pub(super) content: T,
}

impl<T> NodePage<T> {
    pub(super) fn new<R>(page: a2g_journal::Page<R>, row: impl Fn(R) -> NodeRow<T>) -> Self {
        let a2g_journal::Page { items, next, searched_until, is_complete } = page;
        Self { rows: items.into_iter().map(row).collect(), next, searched_until, is_complete }
    }

    /// The time before which another node may have more rows, because its search ran out of time there.
    fn horizon(&self) -> Option<OffsetDateTime> {
        self.searched_until.filter(|_| !self.is_complete)
    }
}

/// For each node, the number before which the next page begins. A node that is not listed begins with its newest row.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Positions(BTreeMap<String, u64>);

impl Positions {
    /// Parses the text that [`Self::to_text`] makes.
    ///
    /// # Errors
    /// A sentence for the person, without its full stop.
    pub(super) fn parse(text: &str) -> Result<Self, &'static str> {
        let parse_one = |one: &str| {
            let (node, number) = one.rsplit_once(':').unwrap_or(("", one));
            Some((node.to_owned(), number.parse().ok()?))
        };
        let positions = text.split(',').filter(|one| !one.is_empty()).map(parse_one);
        positions.collect::<Option<_>>().map(Self).ok_or("`before` is not the end of a page")
    }

    /// `NODE:NUMBER`, separated by commas; outside of a fleet, only the number.
    pub(super) fn to_text(&self) -> String {
        let one = |(node, number): (&String, &u64)| {
            if node.is_empty() { number.to_string() } else { format!("{node}:{number}") }
        };
        self.0.iter().map(one).collect::<Vec<_>>().join(",")
    }

    pub(super) fn of(&self, node: &str) -> Option<u64> {
        self.0.get(node).copied()
    }
}

/// One page of the rows of all nodes, newest first.
pub(super) struct MergedPage<T> {
    /// The rows, with the names of their nodes, which are empty outside of a fleet.
    pub(super) rows: Vec<(String, NodeRow<T>)>,
    /// Where the next page begins; `None` on the last page.
    pub(super) next: Option<Positions>,
    /// If a search ran out of time: the time up to which all nodes have searched.
    pub(super) searched_until: Option<OffsetDateTime>,
}

impl<T> MergedPage<T> {
    /// Merges what the nodes have found from `positions` on. Rows that do not fit, or that are older than what an
    /// unfinished search of another node has reached, are left to the next page.
    pub(super) fn merge(
        mut pages: BTreeMap<String, NodePage<T>>,
        positions: &Positions,
        limit: usize,
    ) -> Self {
        let horizons = pages.iter().filter_map(|(node, page)| Some((node.clone(), page.horizon()?)));
        let horizons = horizons.collect::<Vec<_>>();
        let is_shown = |node: &str, at| horizons.iter().all(|(other, until)| other == node || at >= *until);
        let mut rows = Vec::new();
        let mut next = positions.clone();
        for (node, page) in &pages {
            if let (None, Some(newest)) = (next.of(node), page.rows.front()) {
                // Runs that end before the next page is asked for do not belong to it.
                next.0.insert(node.clone(), newest.number.saturating_add(1));
            }
        }
        while rows.len() < limit {
            let first_rows = pages.iter_mut().filter_map(|(node, page)| {
                let at = page.rows.front()?.at;
                is_shown(node, at).then_some((at, node, page))
            });
            // Of the same time, the first node's row is first.
            let newest = first_rows.max_by_key(|(at, node, _)| (*at, Reverse(node.to_owned())));
            let Some((node, row)) =
                newest.and_then(|(_, node, page)| Some((node.clone(), page.rows.pop_front()?)))
            else {
                break;
            };
            next.0.insert(node.clone(), row.number);
            rows.push((node, row));
        }
        let has_more = pages.values().any(|page| !page.rows.is_empty() || page.next.is_some());
        for (node, page) in pages {
            if page.rows.is_empty() {
                // Numbers begin at 1, so there is nothing before 1.
                next.0.insert(node, page.next.unwrap_or(1));
            }
        }
        let searched_until = horizons.into_iter().map(|(_, until)| until).max();
        Self { rows, next: has_more.then_some(next), searched_until }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    /// A journal: the times of its rows, whose numbers are their places, from 1.
    type Times = Vec<i64>;

    fn at(seconds: i64) -> OffsetDateTime {
        OffsetDateTime::UNIX_EPOCH + time::Duration::seconds(seconds)
    }

    /// Searches a journal, in which a search reads at most `reads` rows.
    fn search(times: &Times, before: Option<u64>, limit: usize, reads: usize) -> NodePage<i64> {
        let end = before.map_or(times.len(), |before| usize::try_from(before - 1).unwrap().min(times.len()));
        let numbered = times.iter().take(end).enumerate().rev();
        let row = |(place, time): (usize, &i64)| NodeRow {
            number: place as u64 + 1,
            at: at(*time),
            content: *time,
        };
        let rows = numbered.take(limit.min(reads)).map(row).collect::<VecDeque<_>>();
        let left = end - rows.len();
        NodePage {
            next: (left > 0).then(|| rows.back().map(|row| row.number)).flatten(),
            searched_until: rows.back().map(|row| row.at),
            is_complete: left == 0 || rows.len() == limit,
            rows,
        }
    }

    proptest! {
        #[test]
        fn all_pages_together_have_each_row_once_in_order(
            journals in vec(vec(0_i64..60, 0..25), 1..5),
            limit in 1_usize..9,
            reads in 1_usize..9,
        ) {
            let mut journals = journals;
            journals.iter_mut().for_each(|times| times.sort_unstable());
            let (mut positions, mut found) = (Positions::default(), Vec::new());
            for _page in 0..500 {
                let search_node = |(node, times): (usize, &Times)| {
                    let node = format!("n{node}");
                    let page = search(times, positions.of(&node), limit, reads);
                    (node, page)
                };
                let pages = journals.iter().enumerate().map(search_node).collect();
                let merged = MergedPage::merge(pages, &positions, limit);
                prop_assert!(merged.rows.len() <= limit);
                found.extend(merged.rows.into_iter().map(|(_, row)| row.content));
                let Some(next) = merged.next else { break };
                prop_assert_eq!(&Positions::parse(&next.to_text()).unwrap(), &next);
                positions = next;
            }
            let mut all = journals.concat();
            all.sort_unstable_by_key(|time| Reverse(*time));
            prop_assert_eq!(found, all);
        }
    }

    #[test]
    fn rows_that_end_between_two_pages_do_not_move_the_second() {
        let mut journals = BTreeMap::from([("a".to_owned(), vec![1, 2, 3]), ("b".to_owned(), vec![0])]);
        let pages = |journals: &BTreeMap<String, Times>, positions: &Positions| {
            let one =
                |(node, times): (&String, &Times)| (node.clone(), search(times, positions.of(node), 2, 9));
            journals.iter().map(one).collect::<BTreeMap<_, _>>()
        };
        let first = MergedPage::merge(pages(&journals, &Positions::default()), &Positions::default(), 2);
        let next = first.next.unwrap();
        assert_eq!(next.to_text(), "a:2,b:2");
        journals.values_mut().for_each(|times| times.push(9));
        let second = MergedPage::merge(pages(&journals, &next), &next, 2);
        assert_eq!(second.rows.iter().map(|(_, row)| row.content).collect::<Vec<_>>(), [1, 0]);
        assert!(second.next.is_none());
    }

    #[test]
    fn a_node_that_does_not_answer_keeps_its_position() {
        let before = Positions::parse("a:5,b:7").unwrap();
        let pages = BTreeMap::from([("a".to_owned(), search(&vec![1, 2, 3, 4], Some(5), 2, 9))]);
        assert_eq!(MergedPage::merge(pages, &before, 2).next.unwrap().to_text(), "a:3,b:7");
        for wrong in ["x", "a:", "a:-1", "a:1,b"] {
            assert!(Positions::parse(wrong).is_err(), "{wrong}");
        }
        assert_eq!(Positions::parse("12").unwrap().of(""), Some(12));
    }
}
