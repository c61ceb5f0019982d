// Counts every fourth clock and shows the count on LEDs.
`timescale 1ns/1ns
`include "width.vh"
module top (
  input               clk,
  input               rst,
  output [`WIDTH-1:0] led
);
  wire [1:0] prescale;
  counter #(.W(2)) divider (.clk(clk), .rst(rst), .en(1'b1), .q(prescale));
  counter          count   (.clk(clk), .rst(rst), .en(prescale == 2'd3), .q(led));
endmodule
