//! Smaller images, and bytes as floats.

use super::{Convert, Converted, WrapError};
use crate::{
    column::{DType, RowShape},
    env::{Env, EnvError},
    prelude::*,
    preprocess::image::{self, AreaResizer, ImageError, Size},
    space::{BoxSpace, Space, SpaceError},
};

fn failed(error: ImageError) -> EnvError {
    EnvError::Failed(error.to_string())
}

fn images(height: u32, width: u32, channels: u32) -> Result<Space, WrapError> {
    let elements = u64::from(height) * u64::from(width) * u64::from(channels);
    let shape = RowShape::new(&[height, width, channels]).map_err(|_| SpaceError::TooLarge { elements })?;
    Ok(Space::uniform(DType::U8, shape, 0.0, 255.0))
}

/// Returns height, width and channels of an environment's images.
fn image_dims(space: &Space, wanted: &'static str) -> Result<[u32; 3], WrapError> {
    match space {
        Space::Box(images) if images.dtype() == DType::U8 => images.shape().dims().try_into().ok(),
        _ => None,
    }
    .ok_or_else(|| WrapError::NotAnImage { space: space.to_string(), wanted })
}

/// Converts colour images to grey: (height, width, 3) becomes (height, width, 1), weighted as in OpenCV.
pub type GreyScale<E> = Converted<E, Grey>;

/// Converts colours to grey.
#[derive(Clone, Copy, Debug)]
pub struct Grey;

impl<E: Env<Obs = u8>> GreyScale<E> {
    /// Wraps an environment.
    ///
    /// # Errors
    /// [`WrapError::NotAnImage`] for anything but images with three channels.
    pub fn new(env: E) -> Result<Self, WrapError> {
        const WANTED: &str = "(height, width, 3)";
        let space = env.observation_space();
        let [height, width, 3] = image_dims(&space, WANTED)? else {
            return Err(WrapError::NotAnImage { space: space.to_string(), wanted: WANTED });
        };
        Self::into_space(env, images(height, width, 1)?, Grey)
    }
}

impl<E: Env<Obs = u8>> Convert<E> for Grey {
    type Obs = u8;

    fn convert(&mut self, _env: &E, raw: &[u8], obs: &mut [u8]) -> Result<(), EnvError> {
        image::grey(raw, obs).map_err(failed)
    }
}

/// Resizes images: every pixel is the mean of the area that it covers.
#[doc(alias = "WarpFrame")]
pub type Resize<E> = Converted<E, AreaResizer>;

impl<E: Env<Obs = u8>> Resize<E> {
    /// Wraps an environment. DeepMind and RLlib use 84 x 84.
    ///
    /// # Errors
    /// [`WrapError::NotAnImage`] for anything but images of at most 65,535 pixels each way, [`WrapError::BadSpace`]
    /// for a size without pixels or with too many.
    pub fn new(env: E, to: Size) -> Result<Self, WrapError> {
        const WANTED: &str = "(height, width, channels)";
        let space = env.observation_space();
        let [height, width, channels] = image_dims(&space, WANTED)?;
        let (Ok(from_height), Ok(from_width)) = (u16::try_from(height), u16::try_from(width)) else {
            return Err(WrapError::NotAnImage { space: space.to_string(), wanted: WANTED });
        };
        let resizer = AreaResizer::new(Size::new(from_height, from_width), to, channels as usize);
        Self::into_space(env, images(u32::from(to.height), u32::from(to.width), channels)?, resizer)
    }
}

impl<E: Env<Obs = u8>> Convert<E> for AreaResizer {
    type Obs = u8;

    fn convert(&mut self, _env: &E, raw: &[u8], obs: &mut [u8]) -> Result<(), EnvError> {
        self.resize(raw, obs).map_err(failed)
    }
}

/// Converts bytes to floats from 0 to 1, by dividing by 255. For policies that only support floats.
#[doc(alias = "ScaledFloatFrame")]
pub type ScaleObs<E> = Converted<E, Unit>;

/// Divides bytes by 255.
#[derive(Clone, Copy, Debug)]
pub struct Unit;

impl<E: Env<Obs = u8>> ScaleObs<E> {
    /// Wraps an environment.
    ///
    /// # Errors
    /// [`WrapError::WrongType`] unless its observations are boxes.
    pub fn new(env: E) -> Result<Self, WrapError> {
        let inner = env.observation_space();
        let Space::Box(bytes) = &inner else {
            return Err(WrapError::WrongType { space: inner.to_string(), found: DType::U8 });
        };
        let scaled = |byte: f64| f64::from(byte as f32 / 255.0);
        let (low, high) = bytes.bounds().map(|(low, high)| (scaled(low), scaled(high))).unzip();
        let space = BoxSpace::new(DType::F32, bytes.shape(), low, high)?.into();
        Self::into_space(env, space, Unit)
    }
}

impl<E: Env<Obs = u8>> Convert<E> for Unit {
    type Obs = f32;

    fn convert(&mut self, _env: &E, raw: &[u8], obs: &mut [f32]) -> Result<(), EnvError> {
        image::to_unit(raw, obs).map_err(failed)
    }
}
