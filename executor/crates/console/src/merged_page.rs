//! Searches over all nodes of a fleet: each node finds a page, and the pages are merged, newest first.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use time::OffsetDateTime;

/// The rows that one node has found, newest first, in the form for another node.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct NodePage<T> {
    pub(super) rows: VecDeque<NodeRow<T>>,
    /// The number before which its next page begins; `None` on its last page.
    pub(super) next: Option<u64>,
    /// The time of the last row that was searched; `None` if none was.
    #[serde(with = "time::serde::timestamp::microseconds::option")]
    pub(super) searched_until: Option<OffsetDateTime>,
    /// `false` if the search ran out of time before the page was full.
    pub(super) is_complete: bool,
}

/// A row, with its number at its node and its time.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct NodeRow<T> {
    pub(super) number: u64,
    #[serde(with = "time::serde::timestamp::microseconds")]
    pub(super) at: OffsetDateTime,
    pub(super) content: T,
}

impl<T> NodePage<T> {
    pub(super) fn new<R>(page: a2g_journal::Page<R>, row: impl Fn(R) -> NodeRow<T>) -> Self {
        let a2g_journal::Page { items, next, searched_until, is_complete } = page;
        Self { rows: items.into_iter().map(row).collect(), next, searched_until, is_complete }
    }

    /// The time before which this node may have more rows, because its search ran out of time there.
    fn horizon(&self) -> Option<OffsetDateTime> {
        self.searched_until.filter(|_| !self.is_complete)
    }

    /// The time that decides when the first row is merged: the latest of all rows, and of the horizon. If a clock was
    /// set back, a row may be newer than the one before it.
    fn front_time(&self) -> Option<OffsetDateTime> {
        self.rows
            .iter()
            .map(|row| row.at)
            .max()
            .map(|newest| self.horizon().map_or(newest, |until| newest.max(until)))
    }

    /// `true` if the next row of this node is on its next page: an executor of another version may send shorter pages.
    fn is_used_up(&self) -> bool {
        self.rows.is_empty() && self.is_complete && self.next.is_some()
    }
}

/// For each node, the number before which the next page begins. A node that is not listed begins with its newest row.
///
/// As text: `NODE:NUMBER`, separated by commas; outside of a fleet, only the number.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(super) struct Positions(BTreeMap<String, u64>);

impl TryFrom<String> for Positions {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let parse_one = |one: &str| {
            let (node, number) = one.rsplit_once(':').unwrap_or(("", one));
            Some((node.to_owned(), number.parse().ok()?))
        };
        let positions = text.split(',').filter(|one| !one.is_empty()).map(parse_one);
        positions.collect::<Option<_>>().map(Self).ok_or("this is not the end of a page")
    }
}

impl From<Positions> for String {
    fn from(Positions(positions): Positions) -> Self {
        let one = |(node, number): (&String, &u64)| {
            if node.is_empty() { number.to_string() } else { format!("{node}:{number}") }
        };
        positions.iter().map(one).collect::<Vec<_>>().join(",")
    }
}

impl Positions {
    /// `true` for the first page.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn of(&self, node: &str) -> Option<u64> {
        self.0.get(node).copied()
    }
}

/// One page of the rows of all nodes, newest first.
pub(super) struct MergedPage<T> {
    /// The rows, with the names of their nodes, which are empty outside of a fleet.
    pub(super) rows: Vec<(String, NodeRow<T>)>,
    /// The positions at which the next page begins; `None` on the last page.
    pub(super) next: Option<Positions>,
    /// If a search ran out of time before the page was full: the time up to which all nodes have searched.
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
        let known = pages.iter().filter_map(|(node, page)| Some((node.clone(), page.horizon()?)));
        let horizons = known.collect::<Vec<_>>();
        let is_shown = |node: &str, at| horizons.iter().all(|(other, until)| other == node || at >= *until);
        let mut rows = Vec::new();
        let mut next = positions.clone();
        for (node, page) in &pages {
            if let (None, Some(newest)) = (next.of(node), page.rows.front()) {
                // Runs that end before the next page is asked for do not belong to it.
                next.0.insert(node.clone(), newest.number.saturating_add(1));
            }
        }
        while rows.len() < limit && !pages.values().any(NodePage::is_used_up) {
            // Of rows with the same time, `max_by_key` returns the last one: that of the first node.
            let fronts = pages.iter_mut().rev().filter_map(|(node, page)| {
                let at = page.front_time()?;
                is_shown(node, at).then_some((at, node, page))
            });
            let Some((_, node, page)) = fronts.max_by_key(|(at, ..)| *at) else { break };
            let Some(row) = page.rows.pop_front() else { break };
            next.0.insert(node.clone(), row.number);
            rows.push((node.clone(), row));
        }
        let has_more = pages.values().any(|page| !page.rows.is_empty() || page.next.is_some());
        for (node, page) in pages {
            if page.rows.is_empty() {
                // Numbers begin at 1, so there is nothing before 1.
                next.0.insert(node, page.next.unwrap_or(1));
            }
        }
        let searched_until =
            horizons.into_iter().map(|(_, until)| until).max().filter(|_| rows.len() < limit);
        Self { rows, next: has_more.then_some(next), searched_until }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use std::cmp::Reverse;

    /// A journal: the times of its rows, whose numbers are their places, from 1.
    type Times = Vec<i64>;

    fn parse(text: &str) -> Positions {
        Positions::try_from(text.to_owned()).unwrap()
    }

    fn at(seconds: i64) -> OffsetDateTime {
        OffsetDateTime::UNIX_EPOCH + time::Duration::seconds(seconds)
    }

    /// Searches a journal, in which a search reads at most `reads` rows.
    fn search(times: &Times, before: Option<u64>, limit: usize, reads: usize) -> NodePage<i64> {
        let end = before.map_or(times.len(), |before| usize::try_from(before - 1).unwrap().min(times.len()));
        let newest_first = times.iter().take(end).enumerate().rev();
        let row = |(place, time): (usize, &i64)| NodeRow {
            number: place as u64 + 1,
            at: at(*time),
            content: *time,
        };
        let rows = newest_first.take(limit.min(reads)).map(row).collect::<VecDeque<_>>();
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
            mut journals in vec(vec(0_i64..60, 0..25), 1..5),
            limit in 1_usize..9,
            limit_elsewhere in 1_usize..9,
            reads in 1_usize..9,
            is_sorted in any::<bool>(),
        ) {
            if is_sorted {
                journals.iter_mut().for_each(|times| times.sort_unstable());
            }
            let mut positions = Positions::default();
            let mut found = Vec::new();
            for _page in 0..500 {
                let search_node = |(node, times): (usize, &Times)| {
                    let node = format!("n{node}");
                    let limit = if node == "n0" { limit } else { limit_elsewhere };
                    let page = search(times, positions.of(&node), limit, reads);
                    (node, page)
                };
                let pages = journals.iter().enumerate().map(search_node).collect();
                let merged = MergedPage::merge(pages, &positions, limit);
                prop_assert!(merged.rows.len() <= limit);
                found.extend(merged.rows.into_iter().map(|(_, row)| row.content));
                let Some(next) = merged.next else { break };
                prop_assert_eq!(&parse(&String::from(next.clone())), &next);
                positions = next;
            }
            let mut all = journals.concat();
            all.sort_unstable_by_key(|time| Reverse(*time));
            if !is_sorted {
                found.sort_unstable_by_key(|time| Reverse(*time));
            }
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
        assert_eq!(next, parse("a:2,b:2"));
        journals.values_mut().for_each(|times| times.push(9));
        let second = MergedPage::merge(pages(&journals, &next), &next, 2);
        assert_eq!(second.rows.iter().map(|(_, row)| row.content).collect::<Vec<_>>(), [1, 0]);
        assert!(second.next.is_none());
    }

    #[test]
    fn a_node_that_does_not_answer_keeps_its_position() {
        let before = parse("a:5,b:7");
        let pages = BTreeMap::from([("a".to_owned(), search(&vec![1, 2, 3, 4], Some(5), 2, 9))]);
        assert_eq!(MergedPage::merge(pages, &before, 2).next.map(String::from).as_deref(), Some("a:3,b:7"));
        for wrong in ["x", "a:", "a:-1", "a:1,b"] {
            assert!(Positions::try_from(wrong.to_owned()).is_err(), "{wrong}");
        }
        assert_eq!(parse("12").of(""), Some(12));
    }
}
