//! Scans the separators in lists of numbers and counts the values, with few reads per byte.

use super::scan::Scanner;

/// Returns whether a number or a word may begin with this byte. Uses a table, because a sign is hard for branch prediction.
#[inline]
fn begins_value(byte: u8) -> bool {
    const BEGINS: [bool; 256] = {
        let mut begins = [false; 256];
        let mut byte = 0;
        while byte < 256 {
            begins[byte] = matches!(byte as u8, b'0'..=b'9' | b'-' | b't' | b'f' | b'N' | b'I');
            byte += 1;
        }
        begins
    };
    BEGINS[usize::from(byte)]
}

impl<'a> Scanner<'a> {
    /// Skips the comma after an item of a list if a number or a word follows.
    #[inline]
    pub(super) fn eat_comma(&mut self) -> bool {
        let (next, len) = match self.text.get(self.at..) {
            Some([b',', b' ', next, ..]) => (*next, 2),
            Some([b',', next, ..]) => (*next, 1),
            _ => return false,
        };
        if !begins_value(next) {
            return false;
        }
        self.at += len;
        true
    }

    /// Skips the end of a list and the beginning of the next one if a number or a word follows.
    #[inline]
    pub(super) fn eat_border(&mut self) -> bool {
        match self.text.get(self.at..) {
            Some([b']', b',', b' ', b'[', next, ..]) if begins_value(*next) => {
                self.at += 4;
                true
            }
            _ => false,
        }
    }

    /// Returns how many times the text since `from` repeats here, minus the last repetition.
    pub(super) fn repeats(&self, from: usize) -> usize {
        let (before, rest) = (self.text.get(from..).unwrap_or_default(), self.rest());
        let (before, rest) = (before.as_chunks::<32>(), rest.as_chunks::<32>());
        let chunks = before.0.iter().zip(rest.0).take_while(|(a, b)| a == b).count();
        let tail = |(chunks_of, tail): (&'a [[u8; 32]], &'a [u8])| chunks_of.get(chunks).map_or(tail, |c| c.as_slice());
        let more = tail(before).iter().zip(tail(rest)).take_while(|(a, b)| a == b).count();
        ((32 * chunks + more) / (self.at - from).max(1)).saturating_sub(1)
    }

    /// Returns the number of values in a row of this nesting depth that begins here, if it is easy to determine.
    pub(super) fn width(&self, depth: usize) -> Option<usize> {
        const NEAR: usize = 4 << 10;
        match depth {
            1 => Some(1),
            2 => {
                let rest = self.rest();
                let near = rest.get(..rest.len().min(NEAR)).unwrap_or_default();
                let row = near.get(..memchr::memchr(b']', near)?)?;
                Some(1 + row.iter().filter(|byte| **byte == b',').count())
            }
            _ => None,
        }
    }

    /// Returns an upper bound for the number of values in a list of numbers: it contains neither strings nor objects, values
    /// are separated by commas, and every value has at least two bytes.
    pub(super) fn most_values(&self) -> usize {
        let rest = self.rest();
        let extent = memchr::memchr2(b'"', b'}', rest).unwrap_or(rest.len());
        let commas = rest.get(..extent).unwrap_or_default().iter().filter(|byte| **byte == b',').count();
        (commas + 1).min(extent / 2 + 1)
    }
}
