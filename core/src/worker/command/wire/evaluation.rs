//! Encodes and decodes evaluations: pictures compressed, everything else as it is.

use lz4_flex::block::{compress_into, decompress_into, get_maximum_output_size};
use serde::{Deserialize, Serialize};

use crate::{
    evaluation::{EvalOutcome, EvalWorkerError, Evaluation, Frames},
    lists::{Bytes, List},
    prelude::*,
    worker::CommandError,
};

/// Most bytes of pictures; further ones are cut off.
const MAX_PICTURE_BYTES: usize = 256 << 20;
/// Bytes of pictures per compressed block.
const BLOCK_BYTES: usize = 16 << 20;
const MAX_BLOCKS: usize = MAX_PICTURE_BYTES / BLOCK_BYTES;

/// An [`EvalOutcome`] on the wire.
pub(in crate::worker::command) type OutcomeForm<'a> = Result<EvaluationForm<'a>, EvalWorkerError>;

#[derive(Serialize, Deserialize)]
pub(in crate::worker::command) struct EvaluationForm<'a> {
    found: Cow<'a, Evaluation>,
    #[serde(borrow)]
    pictures: Option<PicturesForm<'a>>,
}

/// Blocks of LZ4 of [`BLOCK_BYTES`] each; the last one has the rest.
#[derive(Serialize, Deserialize)]
struct PicturesForm<'a> {
    width: u32,
    height: u32,
    is_cut: bool,
    bytes: u64,
    #[serde(borrow)]
    blocks: List<Bytes<'a>, MAX_BLOCKS>,
}

pub(super) fn write_outcome(outcome: &EvalOutcome) -> OutcomeForm<'_> {
    let found = outcome.as_ref().map_err(Clone::clone)?;
    Ok(EvaluationForm { pictures: found.frames.as_ref().map(write_pictures), found: Cow::Borrowed(found) })
}

fn write_pictures(frames: &Frames) -> PicturesForm<'static> {
    let cut = frames.first_within(MAX_PICTURE_BYTES);
    let frames = cut.as_ref().unwrap_or(frames);
    let [_, height, width, _] = frames.shape().map(|n| u32::try_from(n).unwrap_or(0));
    let compress = |block: &[u8]| {
        let mut bytes = vec![0; get_maximum_output_size(block.len())];
        // It fails only if the output buffer is too small.
        let written = compress_into(block, &mut bytes).unwrap_or(0);
        bytes.truncate(written);
        Bytes(bytes.into())
    };
    PicturesForm {
        width,
        height,
        is_cut: frames.is_cut,
        bytes: frames.rgb().len() as u64,
        blocks: frames.rgb().chunks(BLOCK_BYTES).map(compress).collect(),
    }
}

pub(super) fn read_outcome(form: OutcomeForm<'_>) -> Result<EvalOutcome, CommandError> {
    Ok(match form {
        Ok(EvaluationForm { found, pictures }) => {
            Ok(Evaluation { frames: pictures.map(PicturesForm::read).transpose()?, ..found.into_owned() })
        }
        Err(error) => Err(error),
    })
}

impl PicturesForm<'_> {
    fn read(self) -> Result<Frames, CommandError> {
        let wrong = |why: &str| CommandError::malformed("pictures", why);
        let bytes = usize::try_from(self.bytes).ok().filter(|bytes| *bytes <= MAX_PICTURE_BYTES);
        let bytes = bytes.ok_or_else(|| wrong("there are too many"))?;
        let mut rgb = Vec::new();
        for block in &self.blocks.0 {
            // The length that a block claims is bounded by what its bytes can decompress to, before memory is allocated for
            // it.
            let raw = (bytes - rgb.len()).min(BLOCK_BYTES);
            if raw > block.0.len().saturating_mul(255) {
                return Err(wrong("a block is too short"));
            }
            let begin = rgb.len();
            rgb.reserve_exact(raw);
            rgb.resize(begin + raw, 0);
            let read = decompress_into(&block.0, rgb.get_mut(begin..).unwrap_or_default());
            if read.ok() != Some(raw) {
                return Err(wrong("a block is damaged"));
            }
        }
        let is_whole = rgb.len() == bytes;
        let frames = Frames::of(self.width, self.height, rgb, self.is_cut).filter(|_| is_whole);
        frames.ok_or_else(|| wrong("they are not whole"))
    }
}
