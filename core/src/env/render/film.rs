//! Pictures of one size, one after another, as the differences between them.
//!
//! A film is LZ4 over one entry per picture: the number of changed spans, then of each its first pixel, its length and its
//! colours. Numbers have 32 bits, little-endian. The picture before the first one is black.
//!
//! ```
//! use rollmesh_core::env::{Frame, render::{Film, FilmWriter}};
//!
//! let (mut writer, mut frame) = (FilmWriter::default(), Frame::new());
//! for colour in [[9, 0, 0], [0, 9, 0]] {
//!     frame.fill(4, 3, colour);
//!     assert!(writer.add(&frame));
//! }
//! let (bytes, pictures) = writer.finish(1_000);
//! let mut film = Film::read(4, 3, &bytes).expect("it was just written");
//! assert_eq!((film.len(), pictures), (2, 2));
//! assert_eq!(film.picture(1).and_then(|frame| frame.pixel(3, 2)), Some([0, 9, 0]));
//! ```

use lz4_flex::block::{compress_into, decompress_into, get_maximum_output_size};

use super::Frame;
use crate::prelude::*;

/// Maximum number of bytes before compression.
const MAX_RAW: usize = 4 << 20;
/// Spans with fewer equal pixels between them are one.
const GAP: usize = 4;

/// Accumulates a film.
#[derive(Clone, Debug, Default)]
pub struct FilmWriter {
    /// The latest picture.
    shown: Frame,
    raw: Vec<u8>,
    /// The end of each picture in `raw`.
    ends: Vec<usize>,
}

impl FilmWriter {
    /// Maximum number of pixels of a picture in each direction; larger ones are reduced by a whole factor.
    pub const MAX_SIDE: u32 = 320;

    /// Adds a picture. Returns false, without a change, if the film is full, or if it has another size than the first one.
    #[must_use]
    pub fn add(&mut self, frame: &Frame) -> bool {
        let frame = reduced(frame);
        if self.ends.is_empty() {
            self.shown.fill(frame.width, frame.height, [0; 3]);
        }
        let is_other = (self.shown.width, self.shown.height) != (frame.width, frame.height);
        if is_other || self.raw.len() + 2 * frame.rgb.len() + 4 > MAX_RAW {
            return false;
        }
        let at = self.raw.len();
        self.raw.extend([0; 4]);
        let mut spans = 0_u32;
        let ((before, _), (now, _)) = (self.shown.rgb.as_chunks::<3>(), frame.rgb.as_chunks::<3>());
        let differs = |pixel: &usize| before.get(*pixel) != now.get(*pixel);
        let mut next = (0..now.len()).find(differs);
        while let Some(first) = next {
            let mut end = first + 1;
            while let Some(more) = (end..now.len().min(end + GAP)).find(differs) {
                end = more + 1;
            }
            let colours = now.get(first..end).unwrap_or_default();
            self.raw.extend((first as u32).to_le_bytes());
            self.raw.extend((colours.len() as u32).to_le_bytes());
            self.raw.extend_from_slice(colours.as_flattened());
            spans += 1;
            next = (end..now.len()).find(differs);
        }
        self.raw.splice(at..at + 4, spans.to_le_bytes());
        self.ends.push(self.raw.len());
        self.shown = frame;
        true
    }

    /// Returns width and height of the pictures.
    #[must_use]
    pub fn size(&self) -> (u32, u32) {
        (self.shown.width, self.shown.height)
    }

    /// Returns the bytes that the latest picture takes before compression.
    #[must_use]
    pub fn latest_bytes(&self) -> usize {
        self.raw.len() - self.ends.iter().rev().nth(1).copied().unwrap_or(0)
    }

    /// Returns the film, or as many of its first pictures as fit, and their number.
    #[must_use]
    pub fn finish(&self, max_bytes: usize) -> (Vec<u8>, usize) {
        let mut pictures = self.ends.len();
        while let Some(raw) = pictures.checked_sub(1).and_then(|last| self.raw.get(..*self.ends.get(last)?)) {
            let mut bytes = (raw.len() as u32).to_le_bytes().to_vec();
            bytes.resize(4 + get_maximum_output_size(raw.len()), 0);
            let packed = bytes.get_mut(4..).and_then(|out| compress_into(raw, out).ok());
            if let Some(packed) = packed.filter(|packed| 4 + packed <= max_bytes) {
                bytes.truncate(4 + packed);
                return (bytes, pictures);
            }
            pictures = pictures * 7 / 8;
        }
        (Vec::new(), 0)
    }
}

/// Returns the picture, with every n-th pixel if it is larger than a film's.
fn reduced(frame: &Frame) -> Frame {
    let factor = frame.width.max(frame.height).div_ceil(FilmWriter::MAX_SIDE).max(1);
    if factor == 1 {
        return frame.clone();
    }
    let (width, height) = ((frame.width / factor).max(1), (frame.height / factor).max(1));
    let pixels = (0..height).flat_map(|y| (0..width).map(move |x| (x * factor, y * factor)));
    let rgb = pixels.flat_map(|(x, y)| frame.pixel(x, y).unwrap_or_default()).collect();
    Frame { width, height, rgb, failure: None }
}

/// A film that is shown.
#[derive(Clone, Debug, Default)]
pub struct Film {
    raw: Vec<u8>,
    /// The beginning of each picture in `raw`.
    starts: Vec<usize>,
    shown: Frame,
    /// Number of pictures that were applied to `shown`.
    applied: usize,
}

impl Film {
    /// Reads a film. `None` if the bytes are not one of pictures of this size.
    #[must_use]
    pub fn read(width: u32, height: u32, bytes: &[u8]) -> Option<Self> {
        let (&size, packed) = bytes.split_first_chunk()?;
        let size = u32::from_le_bytes(size) as usize;
        let is_credible = size <= MAX_RAW && size / 256 <= packed.len() && width.max(height) <= FilmWriter::MAX_SIDE;
        let mut raw = vec![0; if is_credible { size } else { return None }];
        if decompress_into(packed, &mut raw).ok()? != size {
            return None;
        }
        let pixels = width as usize * height as usize;
        let (mut starts, mut at) = (Vec::new(), 0);
        while at < raw.len() {
            starts.push(at);
            let spans = number_at(&raw, &mut at)?;
            for _ in 0..spans {
                let (first, len) = (number_at(&raw, &mut at)?, number_at(&raw, &mut at)?);
                at = at.checked_add(len.checked_mul(3)?)?;
                if first.checked_add(len)? > pixels || at > raw.len() {
                    return None;
                }
            }
        }
        let mut shown = Frame::new();
        shown.fill(width, height, [0; 3]);
        Some(Self { raw, starts, shown, applied: 0 })
    }

    /// Returns the number of pictures.
    #[must_use]
    pub fn len(&self) -> usize {
        self.starts.len()
    }

    /// Returns true without pictures.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }

    /// Returns a picture, counted from 0. Fast for the one after the last that was returned.
    pub fn picture(&mut self, index: usize) -> Option<&Frame> {
        if index >= self.len() {
            return None;
        }
        if index + 1 < self.applied {
            self.shown.rgb.fill(0);
            self.applied = 0;
        }
        while self.applied <= index {
            self.apply()?;
        }
        Some(&self.shown)
    }

    fn apply(&mut self) -> Option<()> {
        let mut at = *self.starts.get(self.applied)?;
        for _ in 0..number_at(&self.raw, &mut at)? {
            let (first, len) = (number_at(&self.raw, &mut at)?, number_at(&self.raw, &mut at)?);
            let colours = self.raw.get(at..at + 3 * len)?;
            self.shown.rgb.get_mut(3 * first..3 * (first + len))?.copy_from_slice(colours);
            at += 3 * len;
        }
        self.applied += 1;
        Some(())
    }
}

fn number_at(raw: &[u8], at: &mut usize) -> Option<usize> {
    let number = raw.get(*at..)?.first_chunk().copied()?;
    *at += 4;
    Some(u32::from_le_bytes(number) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        env::{AnyVectorEnv as _, CartPole, render::Colour},
        kernels::Kernels,
    };

    fn dotted(pixels: &[(u32, Colour)]) -> Frame {
        let mut frame = Frame::new();
        frame.fill(40, 30, [1, 2, 3]);
        for (pixel, colour) in pixels {
            frame.row_mut((pixel / 40) as usize)[(pixel % 40) as usize] = *colour;
        }
        frame
    }

    #[test]
    fn pictures_are_found_in_any_order() {
        let all = [dotted(&[]), dotted(&[(0, [9; 3]), (2, [8; 3]), (1_199, [7; 3])]), dotted(&[(600, [5; 3])])];
        let mut writer = FilmWriter::default();
        assert!(all.iter().all(|frame| writer.add(frame)));
        assert!(!writer.add(&Frame::new()), "a picture of another size");
        let (bytes, count) = writer.finish(10_000);
        let mut film = Film::read(40, 30, &bytes).expect("a film");
        assert_eq!((film.len(), count), (3, 3));
        for index in [0, 1, 2, 1, 1, 0, 2] {
            assert_eq!(film.picture(index), Some(&all[index]), "{index}");
        }
        assert_eq!(film.picture(3), None);
    }

    #[test]
    fn film_that_is_too_long_ends_early() {
        let mut writer = FilmWriter::default();
        for step in 0..64_u32 {
            let noise = (0..1_200).map(|pixel| (pixel, [(pixel * 7 + step * 13) as u8, (pixel / 3) as u8, step as u8]));
            assert!(writer.add(&dotted(&noise.collect::<Vec<_>>())));
        }
        let (bytes, count) = writer.finish(20_000);
        assert!(bytes.len() <= 20_000 && (1..64).contains(&count), "{count} pictures in {} bytes", bytes.len());
        assert_eq!(Film::read(40, 30, &bytes).map(|film| film.len()), Some(count));
        assert_eq!(writer.finish(3), (vec![], 0));
    }

    #[test]
    fn large_pictures_are_reduced_and_those_of_an_environment_are_small() {
        let mut writer = FilmWriter::default();
        let mut large = Frame::new();
        large.fill(960, 640, [1, 2, 3]);
        assert!(writer.add(&large));
        assert_eq!((writer.size(), writer.finish(usize::MAX).1), ((320, 213), 1));
        let (env, mut frame, mut writer) = (CartPole::new(1, Kernels::PORTABLE), Frame::new(), FilmWriter::default());
        assert!(env.render_at(0, &mut frame) && writer.add(&frame));
        assert!(writer.finish(usize::MAX).0.len() < 10_000);
        let mut writer = FilmWriter::default();
        large.fill(1, 640, [1, 2, 3]);
        assert!(writer.add(&large));
        assert_eq!(writer.size(), (1, 320));
    }

    #[test]
    fn bytes_that_are_no_film_are_rejected() {
        let mut writer = FilmWriter::default();
        assert!(writer.add(&dotted(&[(3, [9; 3])])));
        let (bytes, _) = writer.finish(10_000);
        assert!(Film::read(40, 29, &bytes).is_none() && Film::read(5_000, 30, &bytes).is_none());
        for end in 0..bytes.len() {
            assert!(Film::read(40, 30, &bytes[..end]).is_none(), "{end} bytes");
        }
        let mut claims = u32::MAX.to_le_bytes().to_vec();
        claims.extend(&bytes[4..]);
        assert!(Film::read(40, 30, &claims).is_none());
    }
}
