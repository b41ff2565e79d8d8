// Numbers under the pointer, and folded parts open on paper. The page says all it has to say without this.
(() => {
  "use strict";
  const tip = document.body.appendChild(document.createElement("div"));
  tip.id = "tip";
  const place = (event) => {
    const { offsetWidth: width, offsetHeight: height } = tip;
    const left = Math.min(event.clientX + 14, innerWidth - width - 6);
    const above = event.clientY - height - 14;
    tip.style.left = `${Math.max(6, left)}px`;
    tip.style.top = `${above > 6 ? above : event.clientY + 18}px`;
  };
  const cellAt = (area, data, event) => {
    const box = area.getBoundingClientRect();
    const index = (at, size, count) => Math.max(0, Math.min(count - 1, Math.floor((at / size) * count)));
    return {
      column: index(event.clientX - box.left, box.width, data.x.length),
      row: index(event.clientY - box.top, box.height, data.y.length),
    };
  };
  for (const area of document.querySelectorAll("[data-hover]")) {
    let data;
    const cursor = document.createElement("div");
    cursor.className = "cursor";
    const show = (event) => {
      data ??= JSON.parse(area.parentNode.querySelector("script").textContent);
      const { column, row } = cellAt(area, data, event);
      const name = document.createElement("b");
      name.textContent = [data.y[row], data.x[column]].filter(Boolean).join(", ");
      tip.replaceChildren(name, document.createElement("br"), data.texts[data.cells[row][column]]);
      tip.style.display = "block";
      place(event);
      if (data.y.length === 1) {
        area.append(cursor);
        cursor.style.left = `${((column + 0.5) / data.x.length) * 100}%`;
      }
    };
    const hide = () => {
      tip.style.display = "none";
      cursor.remove();
    };
    area.addEventListener("pointermove", show);
    area.addEventListener("pointerdown", show);
    area.addEventListener("pointerleave", hide);
  }
  let folded = [];
  addEventListener("beforeprint", () => {
    folded = [...document.querySelectorAll("details:not([open])")];
    for (const part of folded) part.open = true;
  });
  addEventListener("afterprint", () => {
    for (const part of folded) part.open = false;
  });
})();
