import { RollmeshError } from "./error.js";
import type { Picture } from "./types.js";

/** Draws pictures of environments to a canvas, whose size it sets to that of the picture; scale the canvas with CSS. */
export class CanvasRenderer {
  readonly #canvas: HTMLCanvasElement | OffscreenCanvas;
  readonly #context: CanvasRenderingContext2D | OffscreenCanvasRenderingContext2D;

  constructor(canvas: HTMLCanvasElement | OffscreenCanvas) {
    const context = canvas.getContext("2d") as CanvasRenderingContext2D | OffscreenCanvasRenderingContext2D | null;
    if (!context) throw new RollmeshError("unsupported", "the canvas has no 2d context: it was used with another one before");
    this.#canvas = canvas;
    this.#context = context;
  }

  /** Draws a picture of a `VectorEnv` or an environment of a worker. Returns false without a picture. */
  draw(picture: Picture | undefined): boolean {
    if (!picture) return false;
    const { width, height, data } = picture;
    if (this.#canvas.width !== width || this.#canvas.height !== height) {
      this.#canvas.width = width;
      this.#canvas.height = height;
    }
    const image = new ImageData(width, height);
    image.data.set(data);
    this.#context.putImageData(image, 0, 0);
    return true;
  }
}
