// A counter with synchronous reset and enable. `WIDTH comes from inc/width.vh.
`timescale 1ns/1ns
`include "width.vh"
module counter #(parameter W = `WIDTH) (
  input              clk,
  input              rst,
  input              en,
  output reg [W-1:0] q
);
  always @(posedge clk)
    if (rst)     q <= 0;
    else if (en) q <= q + 1;
endmodule
