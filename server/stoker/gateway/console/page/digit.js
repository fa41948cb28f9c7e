// A canvas to draw a digit on, and its 28 × 28 pixels as MNIST has them: in a box of 20, by its centre of mass.
import { html, useEffect, useRef } from "./libraries.js";

const SIZE = 280;
const SIDE = 28;
const BOX = 20;
const PEN = 22;

/** Pixels of what is drawn, 784 numbers from 0 to 1; null if nothing is. */
export function pixelsOf(canvas) {
  const { data } = canvas.getContext("2d").getImageData(0, 0, SIZE, SIZE);
  let [left, top, right, bottom] = [SIZE, SIZE, -1, -1];
  for (let at = 0; at < SIZE * SIZE; at += 1) {
    if (data[4 * at] < 40) continue;
    const [x, y] = [at % SIZE, Math.floor(at / SIZE)];
    left = Math.min(left, x);
    right = Math.max(right, x);
    top = Math.min(top, y);
    bottom = Math.max(bottom, y);
  }
  if (right < 0) return null;
  const scale = BOX / Math.max(right - left + 1, bottom - top + 1);
  const [width, height] = [(right - left + 1) * scale, (bottom - top + 1) * scale];
  const draw = (x, y) => {
    const small = new OffscreenCanvas(SIDE, SIDE);
    const pen = small.getContext("2d");
    pen.imageSmoothingQuality = "high";
    pen.fillRect(0, 0, SIDE, SIDE);
    pen.drawImage(canvas, left, top, right - left + 1, bottom - top + 1, x, y, width, height);
    const found = pen.getImageData(0, 0, SIDE, SIDE).data;
    return Array.from({ length: SIDE * SIDE }, (_, at) => found[4 * at] / 255);
  };
  const centred = draw((SIDE - width) / 2, (SIDE - height) / 2);
  const mass = centred.reduce((sum, value) => sum + value, 0) || 1;
  const mean = (part) => centred.reduce((sum, value, at) => sum + value * part(at), 0) / mass;
  const [x, y] = [mean((at) => at % SIDE), mean((at) => Math.floor(at / SIDE))];
  // In MNIST, the centre of mass lies in the middle of the pixel (14, 14).
  return draw((SIDE - width) / 2 + SIDE / 2 - x, (SIDE - height) / 2 + SIDE / 2 - y);
}

/** The canvas; `onDrawn` is given the pixels whenever the pen has moved. */
export function Digit({ onDrawn }) {
  const canvas = useRef(null);
  const last = useRef(null);
  const clear = () => {
    const pen = canvas.current.getContext("2d", { willReadFrequently: true });
    pen.fillStyle = "#000";
    pen.fillRect(0, 0, SIZE, SIZE);
    onDrawn(null);
  };
  useEffect(clear, []);
  const at = (event) => {
    const box = canvas.current.getBoundingClientRect();
    return [((event.clientX - box.left) * SIZE) / box.width, ((event.clientY - box.top) * SIZE) / box.height];
  };
  const line = (from, to) => {
    const pen = canvas.current.getContext("2d");
    Object.assign(pen, { strokeStyle: "#fff", lineWidth: PEN, lineCap: "round", lineJoin: "round" });
    pen.beginPath();
    pen.moveTo(...from);
    pen.lineTo(...to);
    pen.stroke();
    onDrawn(pixelsOf(canvas.current));
  };
  const down = (event) => {
    canvas.current.setPointerCapture(event.pointerId);
    last.current = at(event);
    line(last.current, last.current);
  };
  const move = (event) => {
    if (!last.current) return;
    const now = at(event);
    line(last.current, now);
    last.current = now;
  };
  const up = () => { last.current = null; };
  // Who has no pointer has a stroke that every digit classifier knows.
  const one = () => {
    clear();
    line([140, 50], [140, 230]);
  };
  return html`<div>
    <canvas class="digit" ref=${canvas} width=${SIZE} height=${SIZE} role="img" aria-label="Draw a digit here with a pointer"
      onPointerDown=${down} onPointerMove=${move} onPointerUp=${up} onPointerCancel=${up}></canvas>
    <p><button type="button" onClick=${clear}>Clear</button> <button type="button" onClick=${one}>Draw a 1</button></p>
  </div>`;
}
