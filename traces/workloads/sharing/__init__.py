"""Workloads that are drawn and whose requests share text: sessions, trees and shared contexts."""
