"use strict";
/* Pictures with a map of tokens a pass, and meshes that are turned with the mouse or the arrow keys. */
class Media {
  constructor(root, grid) {
    this.element = document.getElementById("media");
    this.root = root;
    this.grid = grid;
  }

  show(sample) {
    this.element.replaceChildren();
    if (sample.picture) this.picture(sample);
    if (sample.mesh) this.element.append(new Mesh(sample.mesh).canvas);
    if (sample.sound) this.sound(sample);
    if (sample.lost) this.element.textContent = sample.lost;
  }

  sound(sample) {
    const audio = document.createElement("audio");
    audio.controls = true;
    audio.src = this.root + encodeURI(sample.sound);
    audio.setAttribute("aria-label", "What the model heard");
    const spoken = document.createElement("p");
    spoken.textContent = sample.spoken && `Spoken: ${sample.spoken}`;
    this.element.append(audio, spoken);
  }

  picture(sample) {
    const figure = document.createElement("figure");
    const box = document.createElement("div");
    box.className = "picture";
    const image = document.createElement("img");
    image.src = this.root + encodeURI(sample.picture);
    image.alt = `output for the prompt ${sample.prompt}`;
    box.append(image);
    figure.append(box);
    this.element.append(figure);
    const lengths = this.grid && sample.kinds !== null ? Media.lengths(sample) : null;
    if (!lengths || lengths.length < this.grid.columns) return;
    box.append(this.map(lengths));
    const most = Math.max(...lengths);
    const caption = document.createElement("figcaption");
    caption.className = "caption";
    caption.textContent = `Colour: tokens that came from the pass of a cell, from 1 (clear) to ${most}.`;
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = "Hide the map";
    button.addEventListener("click", () => {
      const canvas = box.querySelector("canvas");
      canvas.hidden = !canvas.hidden;
      button.textContent = canvas.hidden ? "Show the map" : "Hide the map";
    });
    figure.append(caption, button);
  }

  /* Tokens of the step of each token, over its passes. */
  static lengths(sample) {
    const of = (name, step) => (Array.isArray(sample.steps[name]) ? sample.steps[name][step] : sample.steps[name]);
    const lengths = [];
    for (let step = 0; step < sample.count; step++) {
      const emitted = of("emitted", step);
      for (let i = 0; i < emitted; i++) lengths.push(emitted / Math.max(1, of("nfe", step)));
    }
    return lengths;
  }

  map(lengths) {
    const { rows, columns, stride } = this.grid;
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [columns, rows];
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", "Map of tokens a pass");
    const pen = canvas.getContext("2d");
    const most = Math.max(2, ...lengths);
    for (let row = 0; row < rows; row++) {
      for (let column = 0; column < columns; column++) {
        const length = lengths[row * stride + column];
        if (length === undefined) continue;
        pen.fillStyle = `rgba(200, 30, 60, ${(0.75 * (length - 1)) / (most - 1)})`;
        pen.fillRect(column, row, 1, 1);
      }
    }
    return canvas;
  }
}

/* Draws shaded triangles from far to near. z points up, in a cube of [-1, 1], as in the sheets of meshes. */
class Mesh {
  static SIZE = 600;

  constructor({ vertices, faces }) {
    this.vertices = vertices;
    this.faces = faces;
    this.turn = -0.9;
    this.tilt = 0.38;
    this.canvas = document.createElement("canvas");
    this.canvas.width = this.canvas.height = Mesh.SIZE;
    this.canvas.className = "mesh";
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "img");
    const count = `${vertices.length / 3} vertices and ${faces.length / 3} triangles`;
    this.canvas.setAttribute("aria-label", `Mesh of ${count}. Drag it, or use the arrow keys, to turn it.`);
    this.canvas.addEventListener("pointerdown", (event) => this.canvas.setPointerCapture(event.pointerId));
    this.canvas.addEventListener("pointermove", (event) => {
      if (event.buttons) this.rotate(event.movementX * 0.01, event.movementY * 0.01);
    });
    this.canvas.addEventListener("keydown", (event) => {
      const moves = { ArrowLeft: [-0.15, 0], ArrowRight: [0.15, 0], ArrowUp: [0, -0.15], ArrowDown: [0, 0.15] };
      if (!(event.key in moves)) return;
      event.preventDefault();
      this.rotate(...moves[event.key]);
    });
    this.draw();
  }

  rotate(turn, tilt) {
    this.turn += turn;
    this.tilt = Math.max(-1.5, Math.min(1.5, this.tilt + tilt));
    this.draw();
  }

  /* Corners as the camera sees them: to the right, up, and away from it. */
  seen() {
    const [ct, st, cu, su] = [Math.cos(this.turn), Math.sin(this.turn), Math.cos(this.tilt), Math.sin(this.tilt)];
    const points = [];
    for (let i = 0; i < this.vertices.length; i += 3) {
      const [x, y, z] = this.vertices.slice(i, i + 3);
      const [right, depth] = [ct * x - st * y, st * x + ct * y];
      points.push([right, cu * z - su * depth, cu * depth + su * z]);
    }
    return points;
  }

  draw() {
    const pen = this.canvas.getContext("2d");
    const scale = Mesh.SIZE / 2.3;
    const points = this.seen();
    const triangles = [];
    for (let i = 0; i < this.faces.length; i += 3) {
      const [a, b, c] = [0, 1, 2].map((k) => points[this.faces[i + k]]);
      triangles.push({ corners: [a, b, c], depth: a[2] + b[2] + c[2], light: Mesh.light(a, b, c) });
    }
    triangles.sort((one, other) => other.depth - one.depth);
    pen.clearRect(0, 0, Mesh.SIZE, Mesh.SIZE);
    pen.lineWidth = 1;
    for (const { corners, light } of triangles) {
      pen.beginPath();
      for (const [x, y] of corners) pen.lineTo(Mesh.SIZE / 2 + x * scale, Mesh.SIZE / 2 - y * scale);
      pen.closePath();
      pen.fillStyle = `hsl(212 38% ${Math.round(26 + 46 * light)}%)`;
      pen.fill();
      pen.strokeStyle = "rgba(20, 28, 40, 0.45)";
      pen.stroke();
    }
  }

  /* Both sides of a triangle are lit. */
  static light(a, b, c) {
    const u = b.map((value, k) => value - a[k]);
    const v = c.map((value, k) => value - a[k]);
    const normal = [u[1] * v[2] - u[2] * v[1], u[2] * v[0] - u[0] * v[2], u[0] * v[1] - u[1] * v[0]];
    const length = Math.hypot(...normal) || 1;
    return Math.abs((0.3 * normal[0] + 0.6 * normal[1] - 0.74 * normal[2]) / length);
  }
}
