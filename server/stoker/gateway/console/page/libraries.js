// What the page is made with, in one place: htm's templates give preact's elements.
import { Fragment, h, render } from "./libraries/preact.js";
import { useEffect, useMemo, useRef, useState } from "./libraries/hooks.js";
import htm from "./libraries/htm.js";

export const html = htm.bind(h);
export { Fragment, render, useEffect, useMemo, useRef, useState };
