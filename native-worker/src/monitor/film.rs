//! Encoding the pictures of an episode as a GIF.

use std::{borrow::Cow, collections::BTreeMap};

use rollmesh_core::env::{Frame, render::Colour};
use serde::{Deserialize, Serialize};

/// The duration of a picture in hundredths of a second: 33 pictures per second. Browsers slow down rates above 50.
const DELAY: u16 = 3;
/// Bytes of a picture in a GIF besides its compressed pixels.
const FRAME_BYTES: usize = 20;
/// Bytes of everything else: header, the largest palette, repetition, end.
const FILE_BYTES: usize = 13 + 3 * MAX_COLOURS + 20;
const MAX_COLOURS: usize = 256;
/// Maximum number of cached colours whose nearest palette entry is known once the palette is full.
const MAX_REMEMBERED: usize = 1 << 16;

/// The reason that the end of a recording is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cut {
    /// The maximum number of pictures was reached.
    MaxFrames,
    /// The maximum number of bytes was reached.
    MaxBytes,
}

/// Compresses pictures as they arrive: of each picture only the rectangle in which it differs from the one before.
#[derive(Debug)]
pub(super) struct Film {
    max_frames: usize,
    max_bytes: usize,
    size: [u16; 2],
    palette: Palette,
    /// The latest picture, each pixel as an index of the palette.
    shown: Vec<u8>,
    /// Buffer for the next one.
    next: Vec<u8>,
    frames: Vec<gif::Frame<'static>>,
    bytes: usize,
    cut: Option<Cut>,
}

impl Film {
    pub(super) fn new(max_frames: usize, max_bytes: usize) -> Self {
        Self {
            max_frames,
            max_bytes,
            size: [0; 2],
            palette: Palette::default(),
            shown: Vec::new(),
            next: Vec::new(),
            frames: Vec::new(),
            bytes: FILE_BYTES,
            cut: None,
        }
    }

    pub(super) fn frames(&self) -> usize {
        self.frames.len()
    }

    /// Returns the reason that no more pictures are accepted, if there is one.
    pub(super) fn cut(&self) -> Option<Cut> {
        self.cut
    }

    /// Adds a picture, unless a limit was reached. The error contains the expected and the actual size.
    pub(super) fn add(&mut self, frame: &Frame) -> Result<(), ([u32; 2], [u32; 2])> {
        let found = [frame.width(), frame.height()];
        let size = found.map(|side| u16::try_from(side).unwrap_or(0));
        let is_first = self.frames.is_empty();
        if size.contains(&0) || !is_first && size != self.size {
            return Err((self.size.map(u32::from), found));
        }
        if self.cut.is_some() {
            return Ok(());
        }
        if self.frames.len() >= self.max_frames {
            self.cut = Some(Cut::MaxFrames);
            return Ok(());
        }
        self.palette.indices(frame.rgb(), &mut self.next);
        let [width, height] = size;
        let all = Area { left: 0, top: 0, right: width, bottom: height };
        let area = if is_first { all } else { Area::of_changes(&self.shown, &self.next, width) };
        let picture = area.encode(&self.next, width);
        let bytes = self.bytes + picture.buffer.len() + FRAME_BYTES + picture.buffer.len() / 255;
        if bytes > self.max_bytes {
            self.cut = Some(Cut::MaxBytes);
            return Ok(());
        }
        self.frames.push(picture);
        (self.size, self.bytes) = (size, bytes);
        std::mem::swap(&mut self.shown, &mut self.next);
        Ok(())
    }

    /// Returns the GIF file.
    pub(super) fn encode(&self) -> Result<Vec<u8>, gif::EncodingError> {
        let [width, height] = self.size;
        let palette = self.palette.colours.as_flattened();
        let mut encoder = gif::Encoder::new(Vec::with_capacity(self.bytes), width, height, palette)?;
        encoder.set_repeat(gif::Repeat::Infinite)?;
        for frame in &self.frames {
            encoder.write_lzw_pre_encoded_frame(frame)?;
        }
        encoder.into_inner()
    }
}

/// The colours of a film in order of appearance, so that indices do not change when colours are added.
#[derive(Debug, Default)]
struct Palette {
    colours: Vec<Colour>,
    known: BTreeMap<Colour, u8>,
}

impl Palette {
    fn indices(&mut self, rgb: &[u8], indices: &mut Vec<u8>) {
        let (pixels, _) = rgb.as_chunks();
        let mut last = None;
        indices.clear();
        indices.extend(pixels.iter().map(|colour| match last {
            // Neighbouring pixels mostly have the same colour.
            Some((same, index)) if same == colour => index,
            _ => {
                let index = self.index(*colour);
                last = Some((colour, index));
                index
            }
        }));
    }

    /// Returns the colour's index, or that of the nearest colour once the palette is full.
    fn index(&mut self, colour: Colour) -> u8 {
        if let Some(index) = self.known.get(&colour) {
            return *index;
        }
        let index = match u8::try_from(self.colours.len()) {
            Ok(new) => {
                self.colours.push(colour);
                new
            }
            Err(_) => {
                let nearest = (0..=u8::MAX).zip(&self.colours).min_by_key(|(_, other)| distance(colour, **other));
                nearest.map_or(0, |(index, _)| index)
            }
        };
        if self.known.len() < MAX_REMEMBERED {
            self.known.insert(colour, index);
        }
        index
    }
}

fn distance(a: Colour, b: Colour) -> u32 {
    a.iter().zip(b).map(|(a, b)| u32::from(a.abs_diff(b)).pow(2)).sum()
}

/// A rectangle of pixels, excluding its right and bottom edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Area {
    left: u16,
    top: u16,
    right: u16,
    bottom: u16,
}

impl Area {
    /// Returns the smallest rectangle with all changes between two pictures of a width; a single pixel if there are none,
    /// since a frame is needed for its duration.
    fn of_changes(before: &[u8], after: &[u8], width: u16) -> Self {
        let wide = usize::from(width).max(1);
        let mut area: Option<Self> = None;
        for (y, (before, after)) in (0..).zip(before.chunks_exact(wide).zip(after.chunks_exact(wide))) {
            let differs = |(before, after): (&u8, &u8)| before != after;
            let Some(first) = before.iter().zip(after).position(differs) else { continue };
            let last = before.iter().zip(after).rposition(differs).unwrap_or(first);
            let (left, right) = (first as u16, last as u16 + 1);
            area = Some(match area {
                Some(area) => Self { left: area.left.min(left), right: area.right.max(right), bottom: y + 1, ..area },
                None => Self { left, top: y, right, bottom: y + 1 },
            });
        }
        area.unwrap_or(Self { left: 0, top: 0, right: 1, bottom: 1 })
    }

    /// Compresses this part of a picture of a width, to be drawn over the previous picture.
    fn encode(self, indices: &[u8], width: u16) -> gif::Frame<'static> {
        let rows = indices.chunks_exact(usize::from(width).max(1)).take(self.bottom.into()).skip(self.top.into());
        let part: Vec<u8> =
            rows.flat_map(|row| row.iter().copied().take(self.right.into()).skip(self.left.into())).collect();
        let mut frame = gif::Frame {
            delay: DELAY,
            dispose: gif::DisposalMethod::Keep,
            left: self.left,
            top: self.top,
            width: self.right - self.left,
            height: self.bottom - self.top,
            buffer: Cow::Owned(part),
            ..gif::Frame::default()
        };
        frame.make_lzw_pre_encoded();
        frame
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_within_their_area() {
        let before = [0; 12];
        let mut after = before;
        assert_eq!(Area::of_changes(&before, &after, 4), Area { left: 0, top: 0, right: 1, bottom: 1 });
        after[6] = 1;
        assert_eq!(Area::of_changes(&before, &after, 4), Area { left: 2, top: 1, right: 3, bottom: 2 });
        after[11] = 1;
        after[5] = 1;
        assert_eq!(Area::of_changes(&before, &after, 4), Area { left: 1, top: 1, right: 4, bottom: 3 });
    }

    #[test]
    fn colours_beyond_the_palette_become_the_nearest() {
        let mut palette = Palette::default();
        for grey in 0..=255 {
            assert_eq!(palette.index([grey; 3]), grey);
        }
        assert_eq!(
            (palette.index([40, 40, 41]), palette.index([40, 40, 41]), palette.index([255, 0, 0])),
            (40, 40, 85)
        );
        assert_eq!(palette.colours.len(), MAX_COLOURS);
    }
}
